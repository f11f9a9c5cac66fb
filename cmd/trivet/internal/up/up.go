package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/simulate"
	"github.com/trivet-dev/trivet/internal/workdir"
)

// Run starts everything, prints how to look at it to out, and blocks until ctx ends or a part fails. Whatever the end,
// no process and no temporary file is left behind. An end that ctx asked for is no error.
func Run(ctx context.Context, opts Options, out io.Writer) (err error) {
	dir, err := workdir.Open(opts.DataDir, "trivet-up-")
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	h := &house{opts: opts, dir: dir, progress: newProgress(out)}
	defer context.AfterFunc(ctx, func() { h.progress.line("\nstopping; a second Ctrl-C leaves %s behind", dir.Path()) })()
	defer func() {
		err = asked(ctx, err)
		if err != nil {
			h.printTroubles()
		}
		err = errors.Join(err, h.stop(), dir.Close())
	}()
	if err := h.start(ctx); err != nil {
		return err
	}
	h.printNext()
	return h.wait(ctx)
}

// asked hides errors that only say that the end was asked for.
func asked(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// house is everything that `trivet up` runs, in the order in which it starts.
type house struct {
	opts     Options
	dir      *workdir.Dir
	progress *progress

	control *controlPlane
	servers *servers
	fleet   *simulate.Fleet
	load    *tasks // heartbeats and churn
}

func (h *house) start(ctx context.Context) error {
	h.progress.line("Trivet on one machine. Data and logs: %s", h.dir.Path())
	if err := checkPorts(h.opts); err != nil {
		return err
	}
	if h.opts.Kubeconfig != "" {
		h.progress.line("%s", foreignCluster)
	}
	if err := h.progress.step("control plane", func() (string, error) { return h.startControlPlane(ctx) }); err != nil {
		return err
	}
	if err := h.progress.step("servers", h.startServers); err != nil {
		return err
	}
	if h.opts.simulates() {
		if err := h.progress.step("fleet", func() (string, error) { return h.startFleet(ctx) }); err != nil {
			return err
		}
	}
	return h.progress.step("all legs ready", func() (string, error) { return h.awaitHealthy(ctx) })
}

func (h *house) startControlPlane(ctx context.Context) (string, error) {
	var err error
	h.control, err = newControlPlane(ctx, h.opts, h.dir.File("control-plane"))
	if err != nil {
		return "", err
	}
	return h.control.describe(), nil
}

func (h *house) startServers() (string, error) {
	var err error
	h.servers, err = startServers(h.control, h.opts, h.dir.File("trivet.log"))
	if err != nil {
		return "", err
	}
	return h.servers.describe(), nil
}

func (h *house) startFleet(ctx context.Context) (string, error) {
	config, err := h.control.adminConfig()
	if err != nil {
		return "", err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	h.fleet = simulate.New(simulate.Config{
		Nodes: h.opts.Nodes, Services: h.opts.Services, Pods: h.opts.Pods, Namespace: "demo", Seed: 1,
	}, kube, h.servers.logger)
	if err := h.fleet.Create(ctx); err != nil {
		return "", err
	}
	beats, err := newHeartbeats(h.servers.addressOf("leasesvc"), h.fleet.Nodes(), h.servers.logger)
	if err != nil {
		return "", err
	}
	h.load = newTasks()
	h.load.start("heartbeats", beats.Run)
	h.load.start("churn", func(ctx context.Context) error { return h.fleet.Churn(ctx, h.opts.Churn) })
	return fmt.Sprintf("%d nodes, %d services, %d pods in namespace demo", h.opts.Nodes, h.opts.Services, h.opts.Pods), nil
}

func (h *house) awaitHealthy(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.opts.ReadyTimeout,
		fmt.Errorf("not ready after %v (--ready-timeout)", h.opts.ReadyTimeout))
	defer cancel()
	ctx, give := context.WithCancelCause(ctx)
	watched := make(chan error, 1)
	go func() {
		err := h.wait(ctx)
		give(err) // what has ended never becomes healthy
		watched <- err
	}()
	err := h.servers.awaitHealthy(ctx)
	give(nil)
	if err := cmp.Or(<-watched, err); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f s after the start", h.progress.elapsed().Seconds()), nil
}

func (h *house) printNext() {
	p := h.progress
	p.line("")
	p.line("  page        %s", h.servers.pageURL())
	p.line("  kubeconfig  %s", h.control.kubeconfig)
	p.line("  etcd        %s", h.control.etcd.Endpoints[0])
	if etcd := h.control.etcd; etcd.CAFile != "" {
		p.line("              --etcd-ca-file %s", etcd.CAFile)
		p.line("              --etcd-cert-file %s --etcd-key-file %s", etcd.CertFile, etcd.KeyFile)
	}
	p.line("  logs        %s", h.servers.logPath)
	p.line("")
	p.line("Try next:")
	p.line("  %s status --server %s", h.opts.Command, h.servers.gatewayAddress())
	p.line("  %s nodes -w --server %s", h.opts.Command, h.servers.gatewayAddress())
	p.line("  kubectl --kubeconfig %s get leases -n kube-node-lease", h.control.kubeconfig)
	p.line("  curl -s %sv1/status", h.servers.pageURL())
	p.line("")
	p.line("Ctrl-C stops everything.")
}

// foreignCluster warns of what is easily forgotten; docs/operations.md says how to switch upstream's loops off.
const foreignCluster = "This cluster has control loops of its own: switch off kube-controller-manager's endpointslice controller first, or both\n" +
	"write the same slices. Its kube-apiservers keep their own endpoints; bootstrapsvc leaves them alone here."

// printTroubles shows the end of the log, which goes with the folder.
func (h *house) printTroubles() {
	for _, line := range lastTroubles(h.dir.File("trivet.log"), shownTroubles) {
		h.progress.line("  %s", line)
	}
}

// wait blocks until ctx ends or something that should run has ended, which is the error.
func (h *house) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-h.servers.tasks.failed():
		return explain(err)
	case err := <-h.load.failed():
		return err
	case <-h.control.done():
		return fmt.Errorf("control plane: %w", h.control.err())
	}
}

// stop ends everything in the opposite order of its start; it may be called at any stage of it.
func (h *house) stop() error {
	began := time.Now()
	h.load.stop()
	err := errors.Join(h.servers.stop(), h.control.stop())
	h.progress.line("stopped in %.1fs", time.Since(began).Seconds())
	return err
}
