package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubelet"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/replicas"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/observe"
)

// silentAfter is how many probes in a row a kubelet may miss before /readyz calls it silent.
const silentAfter = 3

// Run runs the agent until ctx ends, and returns nil then. An error is one that a restart may not
// cure: an address in use, a state directory that cannot be written.
func Run(ctx context.Context, cfg Config, logger *slog.Logger) error {
	n, err := newNode(cfg, logger)
	if err != nil {
		return err
	}
	listener, err := observe.ListenAdmin(ctx, cfg.Admin)
	if err != nil {
		return err
	}
	logger.Info("starting", "version", identity.Version(), "mode", cfg.mode(), "admin", listener.Addr().String())
	parts := newParts(ctx)
	admin := observe.NewAdmin(cfg.Admin, observe.AdminDeps{Gatherer: n.registry, Live: observe.NewChecks(), Ready: n.ready, Logger: logger})
	parts.start("admin server", func(ctx context.Context) error { return admin.Serve(ctx, listener) })
	parts.start("trimmer of the memory", trimMemory)
	parts.start("prober of the kubelet", n.prober.Run)
	parts.start("list of replicas", n.finder.Run)
	if cfg.Kubeconfig != "" {
		parts.start("kube-apiservers", n.runAPIServers)
	}
	parts.start("beats", func(ctx context.Context) error { return n.beats.run(ctx, n.files) })
	err = parts.wait()
	logger.Info("stopped", "error", err)
	return err
}

// node has the parts of the agent.
type node struct {
	cfg      Config
	logger   *slog.Logger
	registry *prometheus.Registry
	ready    *observe.Checks
	prober   *kubelet.Prober
	finder   *replicas.Finder
	beats    *beats
	// apiservers sends requests to kube-apiserver as the node.
	apiservers apiservers
}

// newNode makes the parts. It starts nothing.
func newNode(cfg Config, logger *slog.Logger) (*node, error) {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	n := &node{cfg: cfg, logger: logger, registry: observe.NewRegistry(), ready: observe.NewChecks()}
	n.finder = replicas.New(replicas.Config{
		Source: n.source(), StateFile: filepath.Join(cfg.StateDir, "leasesvc.json"), Logger: logger,
		Settled: func() bool { return n.beats.answers() },
	})
	n.beats = newBeats(&n.cfg, n.finder.Addresses, n.registry, logger)
	probe := kubelet.Config{URL: cfg.Kubelet.Healthz, Interval: cfg.Kubelet.Interval, Timeout: cfg.Kubelet.Timeout, Logger: logger}
	if cfg.mode() == "probe" {
		probe.Seen = n.beats.observe
	}
	n.prober = kubelet.New(probe)
	n.addChecks()
	return n, n.addMetrics()
}

// source returns where the replicas of leasesvc are found.
func (n *node) source() replicas.Source {
	if len(n.cfg.Leasesvc.Addresses) > 0 {
		return replicas.Names(n.cfg.Leasesvc.Addresses)
	}
	namespace, name, _ := strings.Cut(n.cfg.Leasesvc.Service, "/")
	return replicas.EndpointSlices{
		Namespace: namespace, Service: name,
		Client: &http.Client{Transport: &n.apiservers}, Server: &url.URL{Scheme: "https", Host: "kube-apiserver"},
	}
}

// parts are goroutines that stop together: when one fails, or when the context ends.
type parts struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	group  sync.WaitGroup
}

func newParts(ctx context.Context) *parts {
	ctx, cancel := context.WithCancelCause(ctx)
	return &parts{ctx: ctx, cancel: cancel}
}

var errEnded = errors.New("ended before it was stopped")

func (p *parts) start(name string, run func(context.Context) error) {
	p.group.Go(func() {
		err := run(p.ctx)
		if p.ctx.Err() == nil && err == nil {
			err = errEnded
		}
		if err != nil {
			p.cancel(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// wait blocks until all parts have ended, and returns the first failure.
func (p *parts) wait() error {
	p.group.Wait()
	if cause := context.Cause(p.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
