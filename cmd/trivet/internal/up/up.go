// Package up is `trivet up`: all of Trivet on one machine, for a first look and for end-to-end
// tests.
//
// It starts etcd and kube-apiserver as child processes, or uses an existing cluster; the four
// servers in its own process; and a small simulated fleet. It stops them in reverse order. All
// servers listen on loopback without TLS. Files are in one folder, which is removed unless
// --data-dir names it.
package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/simulate"
	"github.com/trivet-dev/trivet/internal/workdir"
)

// Run starts everything, prints addresses to out, and blocks until ctx is done or a part fails. In
// every case it stops its processes and removes temporary files. The end of ctx is not an error.
func Run(ctx context.Context, opts Options, out io.Writer) (err error) {
	dir, err := workdir.Open(opts.DataDir, "trivet-up-")
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	i := &instance{opts: opts, dir: dir, progress: newProgress(out)}
	defer context.AfterFunc(ctx, func() { i.progress.line("\nstopping; a second Ctrl-C stops at once and keeps %s", dir.Path()) })()
	defer func() {
		err = ignoreCanceled(ctx, err)
		if err != nil {
			i.printWarnings()
		}
		err = errors.Join(err, i.stop(), dir.Close())
	}()
	if err := i.start(ctx); err != nil {
		return err
	}
	i.printNext()
	return i.wait(ctx)
}

// ignoreCanceled returns nil for an error that only says that ctx was cancelled.
func ignoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// instance is everything that `trivet up` runs, in the order of its start.
type instance struct {
	opts     Options
	dir      *workdir.Dir
	progress *progress

	control *controlPlane
	servers *servers
	fleet   *simulate.Fleet
	load    *tasks // heartbeats and churn
}

func (i *instance) start(ctx context.Context) error {
	i.progress.line("Trivet on one machine. Data and logs: %s", i.dir.Path())
	if err := checkPorts(i.opts); err != nil {
		return err
	}
	if i.opts.Kubeconfig != "" {
		i.progress.line("%s", existingClusterWarning)
	}
	if err := i.progress.step("control plane", func() (string, error) { return i.startControlPlane(ctx) }); err != nil {
		return err
	}
	if err := i.progress.step("servers", i.startServers); err != nil {
		return err
	}
	if i.opts.simulates() {
		if err := i.progress.step("fleet", func() (string, error) { return i.startFleet(ctx) }); err != nil {
			return err
		}
	}
	return i.progress.step("all services ready", func() (string, error) { return i.awaitHealthy(ctx) })
}

func (i *instance) startControlPlane(ctx context.Context) (string, error) {
	var err error
	i.control, err = newControlPlane(ctx, i.opts, i.dir.File("control-plane"))
	if err != nil {
		return "", err
	}
	return i.control.describe(), nil
}

func (i *instance) startServers() (string, error) {
	var err error
	i.servers, err = startServers(i.control, i.opts, i.dir.File("trivet.log"))
	if err != nil {
		return "", err
	}
	return i.servers.describe(), nil
}

func (i *instance) startFleet(ctx context.Context) (string, error) {
	config, err := i.control.adminConfig()
	if err != nil {
		return "", err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	i.fleet = simulate.New(simulate.Config{
		Nodes: i.opts.Nodes, Services: i.opts.Services, Pods: i.opts.Pods, Namespace: "demo", Seed: 1,
	}, kube, i.servers.logger)
	if err := i.fleet.Create(ctx); err != nil {
		return "", err
	}
	beats, err := newHeartbeats(i.servers.addressOf("leasesvc"), i.fleet.Nodes(), i.servers.logger)
	if err != nil {
		return "", err
	}
	i.load = newTasks()
	i.load.start("heartbeats", beats.Run)
	i.load.start("churn", func(ctx context.Context) error { return i.fleet.Churn(ctx, i.opts.Churn) })
	return fmt.Sprintf("%d nodes, %d services, %d pods in namespace demo", i.opts.Nodes, i.opts.Services, i.opts.Pods), nil
}

func (i *instance) awaitHealthy(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, i.opts.ReadyTimeout,
		fmt.Errorf("not ready after %v (--ready-timeout)", i.opts.ReadyTimeout))
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := i.wait(ctx)
		abort(err) // it never becomes healthy
		ended <- err
	}()
	err := i.servers.awaitHealthy(ctx)
	abort(nil)
	if err := cmp.Or(<-ended, err); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f s after the start", i.progress.elapsed().Seconds()), nil
}

func (i *instance) printNext() {
	p := i.progress
	p.line("")
	p.line("  page        %s", i.servers.pageURL())
	p.line("  kubeconfig  %s", i.control.kubeconfig)
	p.line("  etcd        %s", i.control.etcd.Endpoints[0])
	if etcd := i.control.etcd; etcd.CAFile != "" {
		p.line("              --etcd-ca-file %s", etcd.CAFile)
		p.line("              --etcd-cert-file %s --etcd-key-file %s", etcd.CertFile, etcd.KeyFile)
	}
	p.line("  logs        %s", i.servers.logPath)
	p.line("")
	p.line("Try next:")
	p.line("  %s status --server %s", i.opts.Executable, i.servers.gatewayAddress())
	p.line("  %s nodes -w --server %s", i.opts.Executable, i.servers.gatewayAddress())
	p.line("  kubectl --kubeconfig %s get leases -n kube-node-lease", i.control.kubeconfig)
	p.line("  curl -s %sv1/status", i.servers.pageURL())
	p.line("")
	p.line("Ctrl-C stops everything.")
}

// existingClusterWarning is for an existing cluster; see docs/operations.md.
const existingClusterWarning = "This cluster has its own controllers. Disable the endpointslice controller of kube-controller-manager first:\n" +
	"otherwise both write the same slices. bootstrapsvc does not write the endpoints of kube-apiserver here."

// printWarnings prints the end of the log before its folder is removed.
func (i *instance) printWarnings() {
	for _, line := range lastWarnings(i.dir.File("trivet.log"), shownWarnings) {
		i.progress.line("  %s", line)
	}
}

// wait blocks until ctx is done, or returns the error of a part that ended.
func (i *instance) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-i.servers.tasks.failed():
		return withPortHint(err)
	case err := <-i.load.failed():
		return err
	case <-i.control.done():
		return fmt.Errorf("control plane: %w", i.control.err())
	}
}

// stop stops everything in reverse order. It may be called at any stage of the start.
func (i *instance) stop() error {
	began := time.Now()
	i.load.stop()
	err := errors.Join(i.servers.stop(), i.control.stop())
	i.progress.line("stopped in %.1fs", time.Since(began).Seconds())
	return err
}

// shownWarnings is the number of log lines that are printed after a failure.
const shownWarnings = 8

// lastWarnings returns the last n warnings and errors of a log, each text once; nil without a log.
func lastWarnings(path string, n int) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var lines []string
	seen := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), " ") // without the time
		if !strings.HasPrefix(text, "level=INFO") && !seen[text] {
			seen[text] = true
			lines = append(lines, text)
		}
	}
	return lines[max(0, len(lines)-n):]
}

// progress prints the steps of the start and their durations. One goroutine uses it.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, start: time.Now()}
}

// step runs f and prints one line about its result.
func (p *progress) step(name string, f func() (detail string, err error)) error {
	start := time.Now()
	detail, err := f()
	if err != nil {
		fmt.Fprintf(p.out, "✗ %-18s %v\n", name, err)
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(p.out, "✓ %-18s %-58s %5.1fs\n", name, detail, time.Since(start).Seconds())
	return nil
}

func (p *progress) line(format string, args ...any) {
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *progress) elapsed() time.Duration { return time.Since(p.start) }
