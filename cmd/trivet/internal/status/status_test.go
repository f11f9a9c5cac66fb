package status_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line is one thing a scripted gateway says: a status, or an error that ends a stream.
type line struct {
	problems []string
	err      error
}

// gateway is a GatewayService that says its lines in order, one per question or message, and the last one again and again.
type gateway struct {
	gatewayv1.UnimplementedGatewayServiceServer

	mu    sync.Mutex // guards lines
	lines []line
}

func (g *gateway) next() (*gatewayv1.ClusterStatus, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	said := g.lines[0]
	if len(g.lines) > 1 {
		g.lines = g.lines[1:]
	}
	if said.err != nil {
		return nil, said.err
	}
	healthy := len(said.problems) == 0
	return &gatewayv1.ClusterStatus{
		Cluster: "kitchen", Healthy: healthy,
		Services: []*gatewayv1.ServiceStatus{{Service: "leasesvc", Healthy: healthy, Problems: said.problems}},
	}, nil
}

func (g *gateway) GetClusterStatus(context.Context, *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	status, err := g.next()
	return &gatewayv1.GetClusterStatusResponse{Status: status}, err
}

func (g *gateway) WatchClusterStatus(_ *gatewayv1.WatchClusterStatusRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	for {
		status, err := g.next()
		if err != nil {
			return err
		}
		if err := stream.Send(&gatewayv1.WatchClusterStatusResponse{Status: status}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// serving runs a scripted gateway on the real server and returns its address.
func serving(t *testing.T, lines ...line) string {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("make the gateway: %v", err)
	}
	server.Register(func(r grpc.ServiceRegistrar) { gatewayv1.RegisterGatewayServiceServer(r, &gateway{lines: lines}) })
	listener, err := rpcserver.Listen(cfg)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	return listener.Addr().String()
}

// nowhere is an address at which nobody listens.
func nowhere(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// outcome is what a run of the command left behind.
type outcome struct {
	code           int
	err            error
	stdout, stderr string
}

func run(ctx context.Context, args ...string) outcome {
	var stdout, stderr strings.Builder
	err := execute(ctx, &stdout, &stderr, args...)
	return outcome{code: exit.CodeOf(err), err: err, stdout: stdout.String(), stderr: stderr.String()}
}

func execute(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	command := status.NewCommand(printer.Streams{Out: stdout, Err: stderr, Env: func(string) string { return "" }})
	command.SetArgs(args)
	return command.ExecuteContext(ctx)
}

func noSource() error {
	return rpcerror.New(codes.Unavailable, "NO_SOURCE", "no replica is registered in etcd")
}

func TestStatus_ExitCodes(t *testing.T) {
	tests := []struct {
		name   string
		server func(*testing.T) string
		code   int
		stdout string // a part of it; empty: nothing is printed
		err    string // a part of it
	}{
		{name: "healthy", server: func(t *testing.T) string { return serving(t, line{}) }, code: exit.OK, stdout: "kitchen: healthy"},
		{
			name:   "not healthy",
			server: func(t *testing.T) string { return serving(t, line{problems: []string{"shard 0 has no leader"}}) },
			code:   exit.Findings, stdout: "shard 0 has no leader", err: "the cluster is not healthy: 1 problem",
		},
		{
			name:   "no source",
			server: func(t *testing.T) string { return serving(t, line{err: noSource()}) },
			code:   exit.Undetermined, err: "no replica is registered in etcd",
		},
		{name: "no gateway", server: nowhere, code: exit.Undetermined, err: "connection refused"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := run(t.Context(), "--server", test.server(t))

			if got.code != test.code {
				t.Errorf("exit code = %d (%v), want %d", got.code, got.err, test.code)
			}
			if (test.stdout == "") != (got.stdout == "") || !strings.Contains(got.stdout, test.stdout) {
				t.Errorf("stdout = %q, want %q in it", got.stdout, test.stdout)
			}
			if got.stderr != "" {
				t.Errorf("stderr = %q, want nothing: the error is the caller's to print", got.stderr)
			}
			if (test.err == "") != (got.err == nil) || (got.err != nil && !strings.Contains(got.err.Error(), test.err)) {
				t.Errorf("error = %v, want %q in it", got.err, test.err)
			}
		})
	}
}

func TestStatus_UsageTellsAllProblems(t *testing.T) {
	got := run(t.Context(), "--server=gateway", "-o", "xml", "--color=sometimes", "--wait", "-w", "--interval=1ms", "--wait-duration=-1s", "--timeout=0s")

	if got.code != exit.Usage {
		t.Fatalf("exit code = %d (%v), want %d", got.code, got.err, exit.Usage)
	}
	want := []string{
		`--server="gateway": must be host:port, for example "127.0.0.1:7600"`,
		`--output="xml": must be one of table, json, yaml`,
		`--color="sometimes": must be one of auto, always, never`,
		"--timeout=0s: must be positive",
		"--wait ends and --watch does not; give one of them",
		"--interval=1ms: must be between 250ms and 1h",
		"--wait-duration=-1s: must be positive",
	}
	if diff := cmp.Diff(want, strings.Split(got.err.Error(), "\n")); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestStatus_StrangeCommandLinesAreUsage(t *testing.T) {
	for _, args := range [][]string{{"everything"}, {"--sever=x"}, {"--timeout=soon"}, {"--cert-file=c.pem"}, {"--ca-file=/nowhere/ca.pem"}} {
		if got := run(t.Context(), args...); got.code != exit.Usage {
			t.Errorf("%q: exit code = %d (%v), want %d", args, got.code, got.err, exit.Usage)
		}
	}
}

func TestStatusWait_EndsWithHealth(t *testing.T) {
	server := serving(t, line{err: noSource()}, line{problems: []string{"shard 0 has no leader", "x"}}, line{})

	got := run(t.Context(), "--server", server, "--wait", "--interval=250ms")

	if got.code != exit.OK || !strings.HasPrefix(got.stdout, "kitchen: healthy") {
		t.Errorf("exit code = %d (%v), stdout %q; want 0 and the healthy table", got.code, got.err, got.stdout)
	}
	want := "waiting for the gateway at " + server + ": no replica is registered in etcd\n" +
		"waiting: leasesvc: shard 0 has no leader (and 1 more)\n"
	if got.stderr != want {
		t.Errorf("stderr = %q, want %q", got.stderr, want)
	}
}

func TestStatusWait_InVain(t *testing.T) {
	tests := []struct {
		name   string
		server func(*testing.T) string
		code   int
		stdout string
	}{
		{
			name:   "never healthy: the last status is printed",
			server: func(t *testing.T) string { return serving(t, line{problems: []string{"shard 0 has no leader"}}) },
			code:   exit.Findings, stdout: "shard 0 has no leader",
		},
		{name: "never there", server: nowhere, code: exit.Undetermined},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := run(t.Context(), "--server", test.server(t), "--wait", "--wait-duration=600ms", "--interval=250ms")

			if got.code != test.code || !strings.Contains(got.stdout, test.stdout) {
				t.Errorf("exit code = %d (%v), stdout %q; want %d, %q", got.code, got.err, got.stdout, test.code, test.stdout)
			}
			if got.stderr == "" {
				t.Error("nothing told what was waited for")
			}
		})
	}
}

func TestStatusWait_Interrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()

	got := run(ctx, "--server", nowhere(t), "--wait")

	if got.code != exit.Interrupted || got.err.Error() != "" {
		t.Errorf("exit code = %d (%v), want %d without a word", got.code, got.err, exit.Interrupted)
	}
}

// until cancels when what was written contains a text.
type until struct {
	mu     sync.Mutex // guards text
	text   strings.Builder
	wanted string
	cancel context.CancelFunc
}

func (u *until) Write(data []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.text.Write(data)
	if strings.Contains(u.text.String(), u.wanted) {
		u.cancel()
	}
	return len(data), nil
}

func TestStatusWatch_ABlockPerChangeThroughRestarts(t *testing.T) {
	server := serving(t, line{}, line{}, line{}, line{problems: []string{"one"}}, line{problems: []string{"one"}},
		line{err: rpcerror.ShuttingDown()}, line{problems: []string{"two"}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stdout := &until{wanted: "two", cancel: cancel}
	var stderr strings.Builder

	err := execute(ctx, stdout, &stderr, "--server", server, "-w")

	if code := exit.CodeOf(err); code != exit.Interrupted {
		t.Errorf("exit code = %d (%v), want %d", code, err, exit.Interrupted)
	}
	blocks := strings.Split(strings.TrimSpace(stdout.text.String()), "\n\nkitchen: ")
	if len(blocks) != 3 || !strings.Contains(blocks[1], "one") || !strings.Contains(blocks[2], "two") {
		t.Errorf("stdout has %d blocks, want healthy, one, two:\n%s", len(blocks), stdout.text.String())
	}
	want := "no longer live: this replica is shutting down; try another one; trying again\n"
	if stderr.String() != want {
		t.Errorf("stderr = %q, want %q", stderr.String(), want)
	}
}

func TestStatusWatch_JSONIsALinePerChange(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stdout := &until{wanted: "two", cancel: cancel}

	err := execute(ctx, stdout, io.Discard, "--server", serving(t, line{}, line{problems: []string{"two"}}), "-w", "-o", "json")

	if code := exit.CodeOf(err); code != exit.Interrupted {
		t.Errorf("exit code = %d (%v), want %d", code, err, exit.Interrupted)
	}
	lines := strings.Split(strings.TrimSpace(stdout.text.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], `{"status":{"cluster":"kitchen","healthy":true`) || !strings.Contains(lines[1], `"problems":["two"]`) {
		t.Errorf("stdout = %q, want two objects, a line each", lines)
	}
}

func TestStatusWatch_InPlaceOnATerminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stdout := &until{wanted: "no longer live", cancel: cancel}
	command := status.NewCommand(printer.Streams{Out: stdout, Err: io.Discard, OutIsTerminal: true, Env: func(string) string { return "" }})
	command.SetArgs([]string{"--server", serving(t, line{}, line{}, line{err: errors.New("gone")}), "-w", "--color=never"})

	err := command.ExecuteContext(ctx)

	if code := exit.CodeOf(err); code != exit.Interrupted {
		t.Errorf("exit code = %d (%v), want %d", code, err, exit.Interrupted)
	}
	text := stdout.text.String()
	if cleared, drawn := strings.Count(text, "\x1b[2J"), strings.Count(text, "\x1b[H"); cleared != 1 || drawn != 3 {
		t.Errorf("cleared %d times and drew %d times, want 1 and 3: two statuses, then the notice\n%q", cleared, drawn, text)
	}
	if !strings.HasSuffix(text, "\x1b[J") {
		t.Errorf("what was below is not cleared: %q", text)
	}
}

func TestStatusWatch_GatewayThatWasNeverThere(t *testing.T) {
	if got := run(t.Context(), "--server", nowhere(t), "-w"); got.code != exit.Undetermined {
		t.Errorf("exit code = %d (%v), want %d", got.code, got.err, exit.Undetermined)
	}
}
