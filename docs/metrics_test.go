package docs_test

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/test/lab/metricstest"
)

const kubeconfigOfNoServer = `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}],
contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: a}}]}`

// registryOf builds a server with TLS and all loops, and returns its registry. It serves nothing.
func registryOf(t *testing.T, program process.Program) *prometheus.Registry {
	t.Helper()
	authority, err := certs.NewAuthority("trivet", certs.AuthorityLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.ServerLeaf(program.Name, "trivet-system", "cluster.local"), certs.LeafLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := process.DefaultConfig(program)
	cfg.RPC.TLS = identity.Files{
		CertFile: write("tls.crt", pair.CertPEM), KeyFile: write("tls.key", pair.KeyPEM), CAFile: write("ca.crt", authority.CertPEM()),
	}
	cfg.RPC.Listen, cfg.Admin.Listen, cfg.AdvertiseAddress = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"
	cfg.Kube.Kubeconfig = write("kubeconfig", []byte(kubeconfigOfNoServer))
	cfg.Etcd.Endpoints = []string{"http://127.0.0.1:1"}
	cfg.Audit.File = filepath.Join(folder, "audit.log")
	cfg.Loops, cfg.DryRun.Loops = slices.Concat([]string{"*"}, program.Loops), program.DryRuns
	var registry *prometheus.Registry
	build := program.Build
	program.Build = func(deps process.Deps) (process.Service, error) {
		registry = deps.Metrics.(*prometheus.Registry)
		return build(deps)
	}
	built, err := process.New(cfg, program, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if built.Member().Service != program.Name {
		t.Fatalf("this is %s", built.Member().Service)
	}
	return registry
}

// metrics.md is generated from the registries of built servers: make metrics. A test of the agent
// holds its section.
func TestMetrics_AreNamedBoundedAndDocumented(t *testing.T) {
	all := map[string]map[string]metricstest.Metric{}
	for _, program := range programs() {
		all[program.Name] = metricstest.List(t, registryOf(t, program))
		metricstest.Check(t, all[program.Name])
	}
	shared := maps.Clone(all["gateway"])
	maps.DeleteFunc(shared, func(name string, _ metricstest.Metric) bool {
		return slices.ContainsFunc(programs(), func(p process.Program) bool { return all[p.Name][name].Name == "" })
	})
	metricstest.CheckSection(t, "metrics.md", "Every server", metricstest.Table(shared), *update)
	for _, program := range programs() {
		own := all[program.Name]
		maps.DeleteFunc(own, func(name string, _ metricstest.Metric) bool { return shared[name].Name != "" })
		metricstest.CheckSection(t, "metrics.md", program.Name, metricstest.Table(own), *update)
	}
}
