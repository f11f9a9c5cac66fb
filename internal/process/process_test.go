package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/settings"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// recorder is a service that records its calls.
type recorder struct {
	runErr error
	loops  *loop.Runner
	// leave is closed when what must come before the service's stop has been seen; nil for nothing.
	leave <-chan struct{}

	mu     sync.Mutex
	events []string // guarded by mu
}

func (r *recorder) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.events...)
}

func (r *recorder) Register(grpc.ServiceRegistrar) {}
func (r *recorder) Loops() *loop.Runner            { return r.loops }
func (r *recorder) Counts() map[string]int64       { return map[string]int64{"things": 3} }

func (r *recorder) Run(ctx context.Context) error {
	if r.runErr != nil {
		return r.runErr
	}
	<-ctx.Done()
	if r.leave != nil {
		select { // a client hears of the end of its RPC a moment after the server has ended it
		case <-r.leave:
		case <-time.After(5 * time.Second):
		}
	}
	r.note("service stopped")
	return nil
}

func program(r *recorder) Program {
	return Program{
		Name: "testsvc", Short: "serves a test", Loops: []string{"rest"},
		Build: func(deps Deps) (_ Service, err error) {
			r.loops, err = loop.NewRunner(loop.Config{Selection: deps.LoopSelection, Logger: deps.Logger})
			return r, err
		},
	}
}

func config(endpoints ...string) Config {
	cfg := DefaultConfig(Program{Name: "testsvc"})
	cfg.RPC.Listen, cfg.Admin.Listen, cfg.RPC.Insecure = "127.0.0.1:0", "127.0.0.1:0", true
	cfg.Etcd.Endpoints = endpoints
	return cfg
}

// start runs a process until the test ends, and returns it with a function that stops it and
// returns Run's error.
func start(t *testing.T, cfg Config, r *recorder) (*Process, func() error) {
	t.Helper()
	p, err := New(cfg, program(r), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	var once sync.Once
	stop := func() (err error) {
		once.Do(func() {
			cancel()
			err = <-ended
		})
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return p, stop
}

func dial(t *testing.T, p *Process) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(p.Member().GRPCAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

func get(t *testing.T, p *Process, path string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get("http://" + p.Member().AdminAddress + path)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(body)
}

func TestRun_UnreachableEtcdIsReportedAndDoesNotEndRun(t *testing.T) {
	t.Parallel()
	p, stop := start(t, config("http://127.0.0.1:1"), &recorder{})
	testkit.Eventually(t, 20*time.Second, func() error {
		code, body := get(t, p, "/readyz")
		if code == http.StatusOK || !strings.Contains(body, "etcd") || !strings.Contains(body, "127.0.0.1:1") {
			return errors.New("readyz does not name the etcd that is missing: " + body)
		}
		return nil
	})
	reply, err := statusv1.NewStatusServiceClient(dial(t, p)).GetStatus(t.Context(), &statusv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := reply.GetStatus(); got.GetReady() || len(got.GetProblems()) == 0 || got.GetCounts()["things"] != 3 {
		t.Errorf("status = %v, want it unready with problems and with counts", got)
	}
	if code, body := get(t, p, "/livez"); code != http.StatusOK {
		t.Errorf("livez = %d %s: a missing etcd must not get the process restarted", code, body)
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v after a stop that was asked for", err)
	}
}

func TestRun_ReadyWithEtcdAndHealthFollows(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t)
	cfg := config(cluster.EtcdEndpoints()...)
	cfg.Etcd.CAFile, cfg.Etcd.CertFile, cfg.Etcd.KeyFile = cluster.EtcdFiles()
	p, _ := start(t, cfg, &recorder{})
	health := healthv1.NewHealthClient(dial(t, p))
	testkit.Eventually(t, 20*time.Second, func() error {
		reply, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			return err
		}
		if reply.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			return errors.New(reply.GetStatus().String())
		}
		return nil
	})
	if code, body := get(t, p, "/readyz"); code != http.StatusOK {
		t.Errorf("readyz = %d %s", code, body)
	}
}

func TestRun_StopsInOrder(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	r := &recorder{leave: ended}
	cfg := config("http://127.0.0.1:1")
	cfg.RPC.DrainTimeout = 200 * time.Millisecond
	p, stop := start(t, cfg, r)
	watch, err := healthv1.NewHealthClient(dial(t, p)).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		for {
			if _, err := watch.Recv(); err != nil {
				r.note("RPC ended: " + status.Code(err).String())
				return
			}
		}
	}()
	testkit.Eventually(t, time.Minute, func() error { _, err := watch.Header(); return err })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	<-ended
	want := []string{"RPC ended: " + codes.Unavailable.String(), "service stopped"}
	if diff := cmp.Diff(want, r.seen()); diff != "" {
		t.Errorf("order of the stop (-want +got):\n%s", diff)
	}
}

func TestRun_AFailingServiceEndsTheProcess(t *testing.T) {
	t.Parallel()
	cause := errors.New("the service broke")
	p, err := New(config("http://127.0.0.1:1"), program(&recorder{runErr: cause}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); !errors.Is(err, cause) {
		t.Errorf("Run = %v, want the service's own error", err)
	}
}

func TestNew_PortInUseIsAUsageError(t *testing.T) {
	t.Parallel()
	p, _ := start(t, config("http://127.0.0.1:1"), &recorder{})
	cfg := config("http://127.0.0.1:1")
	cfg.Admin.Listen = p.Member().AdminAddress
	_, err := New(cfg, program(&recorder{}), slog.New(slog.DiscardHandler))
	var usage *UsageError
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "--admin-listen") {
		t.Errorf("New = %v, want a usage error that names --admin-listen", err)
	}
}

func TestNew_ShardsAreReadAfterTheFlags(t *testing.T) {
	shards := 64
	sharded := program(&recorder{})
	sharded.Shards = func() int { return shards }
	sharded.RegisterFlags = func(fs *pflag.FlagSet) { fs.IntVar(&shards, "shards", shards, "how many") }
	cfg := config("http://127.0.0.1:1")
	if problems := settings.Apply(flagSet(&cfg, sharded), []string{"--shards=3"}, nil, ""); len(problems) > 0 {
		t.Fatal(problems)
	}
	p, err := New(cfg, sharded, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if got := len(p.candidate.Status().Shards); got != 3 {
		t.Errorf("the work is divided into %d shards, want the 3 of the flag", got)
	}
}

// noBridge leaves the process-wide loggers of gRPC and client-go to the other tests of the process.
func noBridge(*slog.Logger) {}

func TestMain_EveryMistakeAndExitCode64(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), settings.Invocation{
		Args:    []string{"--listen=0.0.0.0:1", "--insecure", "--cluster=Not/valid", "--nonsense", "--admin-listen=there", "--loops=idle"},
		Environ: []string{"TRIVET_LOG_LEVEL=loud"}, Stdout: &stdout, Stderr: &stderr,
	}, program(&recorder{}), noBridge)
	if code != settings.ExitUsage {
		t.Errorf("exit code = %d, want %d", code, settings.ExitUsage)
	}
	for _, flag := range []string{"--listen", "--cluster", "--nonsense", "--admin-listen", "--log-level", "--loops"} {
		if !strings.Contains(stderr.String(), flag) {
			t.Errorf("the mistake of %s is not reported:\n%s", flag, stderr.String())
		}
	}
	if stdout.Len() > 0 {
		t.Errorf("standard output = %q, want nothing", stdout.String())
	}
}

func TestMain_HelpAndVersionSucceed(t *testing.T) {
	for flag, want := range map[string]string{"--help": "--etcd-endpoints", "--version": "testsvc "} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), settings.Invocation{Args: []string{flag}, Stdout: &stdout, Stderr: &stderr}, program(&recorder{}), noBridge)
		if code != settings.ExitOK || !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: exit code %d, output %q, want 0 and %q in it", flag, code, stdout.String(), want)
		}
	}
}

func TestMain_UnknownVariableIsLogged(t *testing.T) {
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the process stops as soon as it has started
	code := run(ctx, settings.Invocation{
		Args:    []string{"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--insecure", "--etcd-endpoints=http://127.0.0.1:1"},
		Environ: []string{"TRIVET_LISTN=127.0.0.1:1"}, Stdout: &stdout, Stderr: &stderr,
	}, program(&recorder{}), noBridge)
	if code != settings.ExitOK || !strings.Contains(stderr.String(), "level=WARN") || !strings.Contains(stderr.String(), "TRIVET_LISTN") {
		t.Errorf("exit code %d; the log does not name the variable:\n%s", code, stderr.String())
	}
}
