package status_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reply is a reply of the scripted gateway: a status, or an error that ends a stream.
type reply struct {
	problems []string
	// state is that of the verdict; without, it follows from the problems.
	state metav1.Verdict_State
	err   error
}

// gateway is a fake ClusterService. It sends its replies in order, and repeats the last one.
type gateway struct {
	gatewayv1.UnimplementedClusterServiceServer

	mu      sync.Mutex // guards replies
	replies []reply
}

func (g *gateway) next() (*gatewayv1.ClusterStatus, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.replies[0]
	if len(g.replies) > 1 {
		g.replies = g.replies[1:]
	}
	if next.err != nil {
		return nil, next.err
	}
	verdict := &metav1.Verdict{State: next.state}
	for _, problem := range next.problems {
		verdict.Problems = append(verdict.Problems, &metav1.Problem{
			Code: "NO_LEADER", Severity: metav1.Problem_SEVERITY_ERROR, Resource: "shards/leasesvc/0", Message: problem, Service: "leasesvc",
		})
	}
	if verdict.State == 0 {
		verdict.State = metav1.Verdict_STATE_OK
		if len(next.problems) > 0 {
			verdict.State = metav1.Verdict_STATE_FAILED
		}
	}
	return &gatewayv1.ClusterStatus{
		Cluster: "main", Verdict: verdict, Services: []*gatewayv1.ServiceStatus{{Service: "leasesvc", Verdict: verdict}},
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

// serve serves a scripted gateway and returns its address.
func serve(t *testing.T, replies ...reply) string {
	t.Helper()
	return commandtest.ServeCluster(t, &gateway{replies: replies})
}

func unusedAddress(t *testing.T) string { return testkit.FreeAddress(t) }

// result is the result of a run.
type result struct {
	code           int
	err            error
	stdout, stderr string
}

func run(ctx context.Context, args ...string) result {
	var stdout, stderr strings.Builder
	err := commandtest.Execute(ctx, commandtest.Pipe(&stdout, &stderr), status.NewCommand, args...)
	return result{code: exit.CodeOf(err), err: err, stdout: stdout.String(), stderr: stderr.String()}
}

func noSource() error {
	return rpcerror.New(codes.Unavailable, "REPLICAS_UNREACHABLE", "no replica is registered in etcd")
}

func TestStatus_ExitCodes(t *testing.T) {
	tests := []struct {
		name   string
		server func(*testing.T) string
		code   int
		stdout string // a substring; empty: nothing is printed
		err    string // a substring
	}{
		{name: "OK", server: func(t *testing.T) string { return serve(t, reply{}) }, code: exit.OK, stdout: "main: OK"},
		{
			name:   "failed",
			server: func(t *testing.T) string { return serve(t, reply{problems: []string{"shard 0 has no leader"}}) },
			code:   exit.Findings, stdout: "shard 0 has no leader", err: "the verdict is FAILED: 1 problem",
		},
		{
			name: "warning",
			server: func(t *testing.T) string {
				return serve(t, reply{problems: []string{"x"}, state: metav1.Verdict_STATE_WARNING})
			},
			code: exit.Findings, stdout: "main: WARNING", err: "the verdict is WARNING: 1 problem",
		},
		{
			name: "unknown",
			server: func(t *testing.T) string {
				return serve(t, reply{problems: []string{"x"}, state: metav1.Verdict_STATE_UNKNOWN})
			},
			code: exit.Undetermined, stdout: "main: UNKNOWN", err: "the verdict is UNKNOWN: 1 problem",
		},
		{
			name:   "state of a later version",
			server: func(t *testing.T) string { return serve(t, reply{state: 17}) },
			code:   exit.Undetermined, stdout: "main: 17", err: "the verdict is 17: 0 problems",
		},
		{
			name:   "no source",
			server: func(t *testing.T) string { return serve(t, reply{err: noSource()}) },
			code:   exit.Undetermined, err: "no replica is registered in etcd",
		},
		{name: "no gateway", server: unusedAddress, code: exit.Undetermined, err: "connection refused"},
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
				t.Errorf("stderr = %q, want nothing: the caller prints the error", got.stderr)
			}
			if (test.err == "") != (got.err == nil) || (got.err != nil && !strings.Contains(got.err.Error(), test.err)) {
				t.Errorf("error = %v, want %q in it", got.err, test.err)
			}
		})
	}
}

func TestStatus_UsageErrorHasAllProblems(t *testing.T) {
	got := run(t.Context(), "--server=gateway", "-o", "xml", "--color=sometimes", "--wait", "-w", "--interval=1ms", "--wait-duration=-1s", "--timeout=0s")

	if got.code != exit.Usage {
		t.Fatalf("exit code = %d (%v), want %d", got.code, got.err, exit.Usage)
	}
	want := []string{
		`--server="gateway": must be host:port, for example "127.0.0.1:7600"`,
		`--output="xml": must be one of table, json, yaml, jsonpath=TEMPLATE`,
		`--color="sometimes": must be one of auto, always, never`,
		"--timeout=0s: must be positive",
		"--wait and --watch cannot be combined: only --wait ends",
		"--interval=1ms: must be between 250ms and 1h",
		"--wait-duration=-1s: must be positive",
	}
	if diff := cmp.Diff(want, strings.Split(got.err.Error(), "\n")); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestStatus_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{{"everything"}, {"--sever=x"}, {"--timeout=soon"}, {"--cert-file=c.pem"}, {"--ca-file=/nowhere/ca.pem"}} {
		if got := run(t.Context(), args...); got.code != exit.Usage {
			t.Errorf("%q: exit code = %d (%v), want %d", args, got.code, got.err, exit.Usage)
		}
	}
}

func TestStatusWait_EndsWhenOK(t *testing.T) {
	server := serve(t, reply{err: noSource()}, reply{problems: []string{"shard 0 has no leader", "x"}}, reply{})

	got := run(t.Context(), "--server", server, "--wait", "--interval=250ms")

	if got.code != exit.OK || !strings.HasPrefix(got.stdout, "main: OK") {
		t.Errorf("exit code = %d (%v), stdout %q; want 0 and the table", got.code, got.err, got.stdout)
	}
	want := "waiting for the gateway at " + server + ": no replica is registered in etcd\n" +
		"waiting: shards/leasesvc/0: shard 0 has no leader (and 1 more)\n"
	if got.stderr != want {
		t.Errorf("stderr = %q, want %q", got.stderr, want)
	}
}

func TestStatusWait_Timeout(t *testing.T) {
	tests := []struct {
		name   string
		server func(*testing.T) string
		code   int
		stdout string
	}{
		{
			name:   "never OK: the last status is printed",
			server: func(t *testing.T) string { return serve(t, reply{problems: []string{"shard 0 has no leader"}}) },
			code:   exit.Findings, stdout: "shard 0 has no leader",
		},
		{name: "no gateway", server: unusedAddress, code: exit.Undetermined},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := run(t.Context(), "--server", test.server(t), "--wait", "--wait-duration=600ms", "--interval=250ms")

			if got.code != test.code || !strings.Contains(got.stdout, test.stdout) {
				t.Errorf("exit code = %d (%v), stdout %q; want %d, %q", got.code, got.err, got.stdout, test.code, test.stdout)
			}
			if got.stderr == "" {
				t.Error("stderr is empty, want what it waits for")
			}
		})
	}
}

func TestStatusWait_Interrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()

	got := run(ctx, "--server", testkit.FreeAddress(t), "--wait")

	if got.code != exit.Interrupted || got.err.Error() != "" {
		t.Errorf("exit code = %d (%v), want %d and no text", got.code, got.err, exit.Interrupted)
	}
}

// until cancels a context when the output contains a text.
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

func TestStatusWatch_ShowsEachChangeThroughRestarts(t *testing.T) {
	server := serve(t, reply{}, reply{}, reply{}, reply{problems: []string{"one"}}, reply{problems: []string{"one"}},
		reply{err: rpcerror.ShuttingDown()}, reply{problems: []string{"two"}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stdout := &until{wanted: "two", cancel: cancel}
	var stderr strings.Builder

	err := commandtest.Execute(ctx, commandtest.Pipe(stdout, &stderr), status.NewCommand, "--server", server, "-w")

	if code := exit.CodeOf(err); code != exit.Interrupted {
		t.Errorf("exit code = %d (%v), want %d", code, err, exit.Interrupted)
	}
	blocks := strings.Split(strings.TrimSpace(stdout.text.String()), "\n\nmain: ")
	if len(blocks) != 3 || !strings.Contains(blocks[1], "one") || !strings.Contains(blocks[2], "two") {
		t.Errorf("stdout has %d blocks, want healthy, one, two:\n%s", len(blocks), stdout.text.String())
	}
	want := "stream lost: this replica is shutting down; try another one; reconnecting\n"
	if stderr.String() != want {
		t.Errorf("stderr = %q, want %q", stderr.String(), want)
	}
}

func TestStatusWatch_JSONLinePerChange(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stdout := &until{wanted: "two", cancel: cancel}

	err := commandtest.Execute(ctx, commandtest.Pipe(stdout, io.Discard), status.NewCommand, "--server", serve(t, reply{}, reply{problems: []string{"two"}}), "-w", "-o", "json")

	if code := exit.CodeOf(err); code != exit.Interrupted {
		t.Errorf("exit code = %d (%v), want %d", code, err, exit.Interrupted)
	}
	lines := strings.Split(strings.TrimSpace(stdout.text.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], `{"status":{"cluster":"main","verdict":{"state":"STATE_OK"`) || !strings.Contains(lines[1], `"message":"two"`) {
		t.Errorf("stdout = %q, want two objects, a line each", lines)
	}
}

func TestStatusWatch_InPlaceOnATerminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stdout := &until{wanted: "stream lost", cancel: cancel}
	streams := commandtest.Pipe(stdout, io.Discard)
	streams.OutIsTerminal = true

	err := commandtest.Execute(ctx, streams, status.NewCommand,
		"--server", serve(t, reply{}, reply{}, reply{err: errors.New("gone")}), "-w", "--color=never")

	if code := exit.CodeOf(err); code != exit.Interrupted {
		t.Errorf("exit code = %d (%v), want %d", code, err, exit.Interrupted)
	}
	text := stdout.text.String()
	if entered, drawn := strings.Count(text, "\x1b[?1049h"), strings.Count(text, "\x1b[H"); entered != 1 || drawn != 3 {
		t.Errorf("entered the alternate screen %d times and drew %d times, want 1 and 3: two statuses, then the notice\n%q", entered, drawn, text)
	}
	if !strings.Contains(text, "\x1b[J\x1b[?1049l") {
		t.Errorf("the alternate screen is not left after the last status: %q", text)
	}
}

func TestStatusWatch_NoGateway(t *testing.T) {
	if got := run(t.Context(), "--server", testkit.FreeAddress(t), "-w"); got.code != exit.Undetermined {
		t.Errorf("exit code = %d (%v), want %d", got.code, got.err, exit.Undetermined)
	}
}
