// Package up is `trivet-lab up`: all of Trivet on one machine, for a first look and for end-to-end
// tests.
//
// It starts etcd and kube-apiserver as child processes, or uses an existing cluster; the four
// servers in its own process; and a small simulated fleet. It stops them in reverse order. Files
// are in one folder, which is removed unless --data-dir names it.
//
// Everything is authenticated and authorized as in production: each server has a certificate and
// the rights of its roles in deploy/, each simulated node has its own certificate, and its user is
// an administrator by a certificate in that folder.
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
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/simulate"
	"github.com/trivet-dev/trivet/test/lab/workdir"
)

// Run starts everything, prints addresses to out, and blocks until ctx is done or a part fails. In
// every case it stops its processes and removes temporary files. The end of ctx is not an error.
func Run(ctx context.Context, opts Options, out io.Writer) (err error) {
	dir, err := workdir.Open(opts.DataDir, "trivet-up-")
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	u := &instance{opts: opts, dir: dir, progress: newProgress(out)}
	defer context.AfterFunc(ctx, func() { u.progress.line("\nstopping; a second Ctrl-C stops at once and keeps %s", dir.Path()) })()
	defer func() {
		err = ignoreCanceled(ctx, err)
		if err != nil {
			u.printWarnings()
		}
		err = errors.Join(err, u.stop(), dir.Close())
	}()
	if err := u.start(ctx); err != nil {
		return err
	}
	withdraw, err := u.publish()
	if err != nil {
		return err
	}
	defer withdraw()
	return u.wait(ctx)
}

// ignoreCanceled returns nil for an error that only says that ctx was cancelled.
func ignoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// instance is everything that `trivet-lab up` runs, in the order of its start.
type instance struct {
	opts     Options
	dir      *workdir.Dir
	progress *progress

	control *controlPlane
	creds   *credentials
	servers *servers
	fleet   *simulate.Fleet
	load    *tasks // heartbeats and churn
	beats   *heartbeats
	demo    *demo // nil without --demo
}

func (u *instance) start(ctx context.Context) error {
	u.progress.line("Trivet on one machine. Data and logs: %s", u.dir.Path())
	if err := checkPorts(u.opts); err != nil {
		return err
	}
	if u.opts.Kubeconfig != "" {
		u.progress.line("%s", existingClusterWarning)
	}
	if err := u.progress.step("control plane", func() (string, error) { return u.startControlPlane(ctx) }); err != nil {
		return err
	}
	if err := u.progress.step("servers", u.startServers); err != nil {
		return err
	}
	if u.opts.simulates() {
		if err := u.progress.step("fleet", func() (string, error) { return u.startFleet(ctx) }); err != nil {
			return err
		}
	}
	if err := u.progress.step("all services ready", func() (string, error) { return u.awaitReady(ctx) }); err != nil {
		return err
	}
	if u.opts.Demo {
		if err := u.progress.step("demo", func() (string, error) { return u.startDemo(ctx) }); err != nil {
			return err
		}
	}
	return u.servers.servePage(u.opts, u.demo.pageHandler())
}

func (u *instance) startControlPlane(ctx context.Context) (string, error) {
	var err error
	u.control, err = newControlPlane(ctx, u.opts, u.dir.File("control-plane"))
	if err != nil {
		return "", err
	}
	return u.control.describe(), nil
}

func (u *instance) startServers() (string, error) {
	var err error
	if u.creds, err = newCredentials(u.dir.File("certificates"), u.control.clientCA); err != nil {
		return "", err
	}
	if u.servers, err = startServers(u.control, u.creds, u.opts, u.dir.File("trivet.log")); err != nil {
		return "", err
	}
	return u.servers.describe(), nil
}

func (u *instance) startFleet(ctx context.Context) (string, error) {
	config, err := u.control.adminConfig()
	if err != nil {
		return "", err
	}
	config.WarningHandler = rest.NoWarnings{} // the fleet has an Endpoints object, which is deprecated
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	u.fleet = simulate.New(simulate.Config{
		Nodes: u.opts.Nodes, Services: u.opts.Services, Pods: u.opts.Pods, Namespace: "demo", Seed: 1,
	}, kube, u.servers.logger)
	if err := u.fleet.Create(ctx); err != nil {
		return "", err
	}
	u.beats, err = newHeartbeats(u.servers.addressesOf("leasesvc"), u.creds, u.fleet, u.servers.logger)
	if err != nil {
		return "", err
	}
	u.load = newTasks()
	u.load.start("heartbeats", u.beats.Run)
	u.load.start("churn", func(ctx context.Context) error { return u.fleet.Churn(ctx, u.opts.Churn) })
	return fmt.Sprintf("%d nodes, %d services, %d pods in namespace demo", u.opts.Nodes, u.opts.Services, u.opts.Pods), nil
}

func (u *instance) awaitReady(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, u.opts.ReadyTimeout,
		fmt.Errorf("not ready after %v (--ready-timeout)", u.opts.ReadyTimeout))
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := u.wait(ctx)
		abort(err) // it never becomes ready
		ended <- err
	}()
	err := u.servers.awaitReady(ctx)
	abort(nil)
	if err := cmp.Or(<-ended, err); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f s after the start", u.progress.elapsed().Seconds()), nil
}

// publish tells the user and other commands how to reach the gateway as the administrator.
func (u *instance) publish() (withdraw func(), err error) {
	file, err := u.servers.settings.writeScript(u.dir.Path())
	if err != nil {
		return nil, err
	}
	withdraw, found := func() {}, false
	if !u.opts.FreePorts && u.opts.Env != nil {
		remove, err := u.servers.settings.publish(u.opts.Env)
		if err != nil {
			u.progress.line("commands do not find this instance by themselves: %v", err)
		} else {
			withdraw, found = remove, true
		}
	}
	u.printNext(file, found)
	return withdraw, nil
}

// printNext prints the addresses and what to try. found says that commands find the gateway without
// the settings in the file.
func (u *instance) printNext(file string, found bool) {
	p, admin := u.progress, u.creds.admin
	p.line("")
	p.line("  page        %s", u.servers.page.url)
	p.line("              this URL gives your rights; trivet dashboard makes another one")
	p.line("  gateway     %s (gRPC), %s (HTTP)", u.servers.gatewayAddress(), u.servers.apiURL())
	p.line("  settings    %s", file)
	p.line("              of an administrator, for a shell: . %s", file)
	p.line("  kubeconfig  %s", u.control.kubeconfig)
	p.line("  etcd        %s", u.control.etcd.Endpoints[0])
	if etcd := u.control.etcd; etcd.CAFile != "" {
		p.line("              --etcd-ca-file %s", etcd.CAFile)
		p.line("              --etcd-cert-file %s --etcd-key-file %s", etcd.CertFile, etcd.KeyFile)
	}
	p.line("  logs        %s", u.servers.logPath)
	u.demo.describe(p)
	p.line("")
	p.line("Try next:")
	if !found {
		p.line("  . %s", file)
	}
	p.line("  %s status", u.opts.Trivet)
	p.line("  %s nodes -w", u.opts.Trivet)
	if u.demo != nil {
		p.line("  %s break node", u.opts.Lab)
		p.line("  %s break --list", u.opts.Lab)
		p.line("  %s findings", u.opts.Trivet)
	}
	p.line("  kubectl --kubeconfig %s get leases -n kube-node-lease", u.control.kubeconfig)
	p.line("  curl --cacert %s --cert %s --key %s %sv1/status", admin.CAFile, admin.CertFile, admin.KeyFile, u.servers.apiURL())
	p.line("")
	p.line("Ctrl-C stops everything.")
}

// existingClusterWarning is for an existing cluster; see docs/migrate.md.
const existingClusterWarning = "This cluster has its own controllers. Disable the endpointslice controller of kube-controller-manager first:\n" +
	"otherwise both write the same slices. bootstrapsvc does not write the endpoints of kube-apiserver here."

// printWarnings prints the end of the log before its folder is removed.
func (u *instance) printWarnings() {
	for _, line := range lastWarnings(u.dir.File("trivet.log"), shownWarnings) {
		u.progress.line("  %s", line)
	}
}

// wait blocks until ctx is done, or returns the error of a part that ended.
func (u *instance) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-u.servers.tasks.failed():
		return withPortHint(err)
	case err := <-u.load.failed():
		return err
	case err := <-u.demo.failed():
		return err
	case <-u.control.done():
		return fmt.Errorf("control plane: %w", u.control.err())
	}
}

// stop stops everything in reverse order. It may be called at any stage of the start.
func (u *instance) stop() error {
	began := time.Now()
	err := u.demo.stop()
	u.load.stop()
	err = errors.Join(err, u.servers.stop(), u.control.stop())
	u.progress.line("stopped in %.1fs", time.Since(began).Seconds())
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
