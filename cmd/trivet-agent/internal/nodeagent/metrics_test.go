package nodeagent

import (
	"log/slog"
	"testing"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/endpoint"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
	"github.com/trivet-dev/trivet/test/lab/metricstest"
)

// The agent has its metrics in endpoint mode; in probe mode those of the endpoint are missing.
func TestMetrics_AreNamedBoundedAndDocumented(t *testing.T) {
	f := newFixture(t)
	f.rotate(t, "node-1", "first.pem")
	cfg := f.config()
	cfg.Endpoint.Listen, cfg.Kubeconfig, cfg.Endpoint.ClientCAFile = "127.0.0.1:7604", f.path("kubeconfig"), f.path("ca.crt")
	f.write(t, "kubeconfig", []byte(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1", certificate-authority: `+f.path("ca.crt")+`}}],
users: [{name: a, user: {client-certificate: `+f.path("first.pem")+`, client-key: `+f.path("first.pem")+`}}]}`))
	logger := slog.New(slog.DiscardHandler)
	n, err := newNode(cfg, logger)
	if err != nil {
		t.Fatal(err)
	}
	files, err := n.files()
	if err != nil {
		t.Fatal(err)
	}
	client, err := files.Client(logger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.beats.newAgent(nodeIdentity{node: "node-1", bootID: "boot", client: client}); err != nil {
		t.Fatal(err)
	}
	file, _, err := n.readKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := upstream.New(upstream.Config{Kubeconfig: file, Node: "node-1", StateDir: cfg.StateDir, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	served, err := endpoint.New(endpoint.Config{
		Node: "node-1", Listen: cfg.Endpoint.Listen, Upstream: pool, Kubeconfig: file, ClientCAFile: cfg.Endpoint.ClientCAFile,
		StateDir: cfg.StateDir, Heartbeats: n.beats, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.registry.MustRegister(served)
	metrics := metricstest.List(t, n.registry)
	metricstest.Check(t, metrics)
	metricstest.CheckSection(t, "../../../../docs/metrics.md", "trivet-agent", metricstest.Table(metrics), *update)
}
