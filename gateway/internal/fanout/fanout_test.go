package fanout_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// replica answers status questions by a function. It leads one of one shards.
type replica struct {
	statusv1.UnimplementedStatusServiceServer
	answer func(context.Context) error
	listed *atomic.Int64 // counts ListShards
}

func (r replica) ListShards(context.Context, *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	r.listed.Add(1)
	return &statusv1.ListShardsResponse{Shards: []*statusv1.ShardStatus{{Service: "leasesvc", LeaderId: "a"}}}, nil
}

func (r replica) GetStatus(ctx context.Context, _ *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	if err := r.answer(ctx); err != nil {
		return nil, err
	}
	return &statusv1.GetStatusResponse{Status: &statusv1.ReplicaStatus{ShardCount: 1, LedShards: []int32{0}}}, nil
}

func answers(context.Context) error { return nil }

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func member(id string) term.Member {
	return term.Member{ID: id, Service: "leasesvc", Cluster: "c", Version: "v1", GRPCAddress: id + ":1", AdminAddress: id + ":2", StartTime: time.Unix(1_800_000_000, 0)}
}

// fixture runs replicas in memory and dials them by their addresses.
type fixture struct {
	t         *testing.T
	listeners map[string]*bufconn.Listener
	dialed    atomic.Int64
	listed    atomic.Int64
}

func newFixture(t *testing.T, replicas map[string]func(context.Context) error) *fixture {
	t.Helper()
	h := &fixture{t: t, listeners: map[string]*bufconn.Listener{}}
	for id, answer := range replicas {
		listener, server := bufconn.Listen(1<<16), grpc.NewServer()
		statusv1.RegisterStatusServiceServer(server, replica{answer: answer, listed: &h.listed})
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		t.Cleanup(func() {
			server.Stop()
			if err := <-done; err != nil {
				t.Errorf("serve %s: %v", id, err)
			}
		})
		h.listeners[id+":1"] = listener
	}
	return h
}

func (h *fixture) dial(m term.Member) (*grpc.ClientConn, error) {
	h.dialed.Add(1)
	return grpc.NewClient("passthrough:///"+m.GRPCAddress, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if listener := h.listeners[address]; listener != nil {
				return listener.DialContext(ctx)
			}
			return nil, errors.New("connection refused")
		}))
}

func (h *fixture) pool() *fanout.Pool {
	pool := fanout.NewPool(h.dial)
	h.t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			h.t.Errorf("close the connections: %v", err)
		}
	})
	return pool
}

func TestAsk_SlowReplicasDelayNoOthers(t *testing.T) {
	h := newFixture(t, map[string]func(context.Context) error{
		"up": answers, "stuck": hangs, "broken": func(context.Context) error { return status.Error(codes.Internal, "a defect") },
	})
	metrics := prometheus.NewRegistry()
	const timeout = 500 * time.Millisecond
	fan, err := fanout.New(h.pool(), timeout, metrics)
	if err != nil {
		t.Fatal(err)
	}
	noAddress := member("no-address")
	noAddress.GRPCAddress = ""

	started := time.Now()
	sources := fan.Ask(t.Context(), []term.Member{member("stuck"), member("up"), member("down"), noAddress, member("broken")})

	if took := time.Since(started); took < timeout || took > 10*timeout {
		t.Errorf("took %s, want little more than one timeout of %s", took, timeout)
	}
	type outcome struct {
		ID, Code, Message string
		Answered          bool
	}
	var got []outcome
	for _, source := range sources {
		message := source.Message
		if source.Code == code.Code_UNAVAILABLE {
			message = "" // gRPC's own text
		}
		got = append(got, outcome{ID: source.Replica.Id, Code: source.Code.String(), Message: message, Answered: source.Answer != nil})
	}
	want := []outcome{
		{ID: "stuck", Code: "DEADLINE_EXCEEDED", Message: "no answer within 500ms"},
		{ID: "up", Code: "OK", Answered: true},
		{ID: "down", Code: "UNAVAILABLE"},
		{ID: "no-address", Code: "FAILED_PRECONDITION", Message: "it is registered without a gRPC address"},
		{ID: "broken", Code: "INTERNAL", Message: "a defect"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"DEADLINE_EXCEEDED": 1, "OK": 1, "UNAVAILABLE": 1, "FAILED_PRECONDITION": 1, "INTERNAL": 1}, answersByCode(t, metrics)); diff != "" {
		t.Errorf("answers by code (-want +got):\n%s", diff)
	}
}

// All leaders answered and said what they lead, so that nothing is gained by lists of shards.
func TestAsk_ShardsAreListedOnlyIfALeaderIsInDoubt(t *testing.T) {
	h := newFixture(t, map[string]func(context.Context) error{"a": answers, "b": answers})
	fan, err := fanout.New(h.pool(), 500*time.Millisecond, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	fan.Ask(t.Context(), []term.Member{member("a"), member("b")})
	if listed := h.listed.Load(); listed != 0 {
		t.Errorf("ListShards was called %d times, want never", listed)
	}
	sources := fan.Ask(t.Context(), []term.Member{member("a"), member("b"), member("down")})
	if listed := h.listed.Load(); listed != 2 || len(sources[0].Shards) != 1 {
		t.Errorf("beside a replica that is down ListShards was called %d times and returned %v, want twice and a shard", listed, sources[0].Shards)
	}
}

func answersByCode(t *testing.T, metrics *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "trivet_gateway_answers_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "code" {
					counted[label.GetValue()] = metric.GetCounter().GetValue()
				}
			}
		}
	}
	return counted
}

func TestAsk_NoMemberIsNoError(t *testing.T) {
	fan, err := fanout.New(newFixture(t, nil).pool(), time.Second, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if sources := fan.Ask(t.Context(), nil); len(sources) != 0 {
		t.Errorf("Ask() = %v, want nothing", sources)
	}
}

func TestNew_SameMetricsTwiceIsAnError(t *testing.T) {
	metrics := prometheus.NewRegistry()
	pool := newFixture(t, nil).pool()
	if _, err := fanout.New(pool, time.Second, metrics); err != nil {
		t.Fatal(err)
	}
	if _, err := fanout.New(pool, time.Second, metrics); err == nil {
		t.Error("New() = nil for a registry that has the metrics")
	}
}

// A process at the address of a dead one must not inherit a connection that backs off.
func TestPool_OneConnectionForEachProcess(t *testing.T) {
	h := newFixture(t, map[string]func(context.Context) error{"a": answers})
	pool := h.pool()
	first, err := pool.Connection(member("a"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := pool.Connection(member("a"))
	if err != nil || again != first || h.dialed.Load() != 1 {
		t.Errorf("the second connection is another one (%v), dialed %d times; want the same", err, h.dialed.Load())
	}
	successor := member("b")
	successor.GRPCAddress = "a:1"
	other, err := pool.Connection(successor)
	if err != nil || other == first || pool.Connections() != 2 {
		t.Errorf("another process at the address shares the connection (%v)", err)
	}

	if err := pool.Keep([]term.Member{successor}); err != nil || pool.Connections() != 1 {
		t.Errorf("Keep() = %v and leaves %d connections, want 1", err, pool.Connections())
	}
	if _, err := statusv1.NewStatusServiceClient(first).GetStatus(t.Context(), &statusv1.GetStatusRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("a call on a dropped connection = %v, want CANCELED", err)
	}
	if _, err := statusv1.NewStatusServiceClient(other).GetStatus(t.Context(), &statusv1.GetStatusRequest{}); err != nil {
		t.Errorf("a call on a kept connection = %v", err)
	}
}

// A replica leaves while it is asked, as one that hangs and is given up.
func TestCallMember_SaysThatTheReplicaLeft(t *testing.T) {
	asked := make(chan struct{})
	h := newFixture(t, map[string]func(context.Context) error{"a": func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	}})
	pool := h.pool()
	go func() {
		<-asked
		if err := pool.Keep(nil); err != nil {
			t.Errorf("Keep() = %v", err)
		}
	}()
	_, err := fanout.CallMember(t.Context(), pool, member("a"), func(ctx context.Context, conn grpc.ClientConnInterface, _ term.Member) (*statusv1.GetStatusResponse, error) {
		return statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	})
	if status.Code(err) != codes.Canceled || !strings.Contains(err.Error(), "it left during the call") {
		t.Errorf("error is %v, want CANCELED because the replica left", err)
	}
}

// A call that began before a replica left may ask for its connection after it left. Nothing would
// close that connection.
func TestPool_DepartedMemberIsNotDialedAgain(t *testing.T) {
	h := newFixture(t, map[string]func(context.Context) error{"a": answers, "b": answers})
	pool := h.pool()
	keep := func(members ...term.Member) {
		t.Helper()
		if err := pool.Keep(members); err != nil {
			t.Fatalf("Keep() = %v", err)
		}
	}
	keep(member("a"))
	keep()
	if _, err := pool.Connection(member("a")); status.Code(err) != codes.Unavailable || h.dialed.Load() != 0 || pool.Connections() != 0 {
		t.Errorf("Connection() = %v to a member that left, dialed %d times; want UNAVAILABLE, and no dial", err, h.dialed.Load())
	}
	if _, err := pool.Connection(member("b")); err != nil {
		t.Errorf("Connection() = %v to a member that Keep does not know yet", err)
	}
	keep(member("a"))
	if _, err := pool.Connection(member("a")); err != nil {
		t.Errorf("Connection() = %v to a member that came back", err)
	}
}

func TestPool_ClosedHasNoConnections(t *testing.T) {
	h := newFixture(t, map[string]func(context.Context) error{"a": answers})
	pool := h.pool()
	if _, err := pool.Connection(member("a")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := pool.Close(); err != nil || pool.Connections() != 0 {
			t.Errorf("Close() = %v and leaves %d connections", err, pool.Connections())
		}
	}
	if _, err := pool.Connection(member("a")); status.Code(err) != codes.Unavailable || h.dialed.Load() != 1 {
		t.Errorf("Connection() after Close = %v, dialed %d times; want UNAVAILABLE, and no dial", err, h.dialed.Load())
	}
}

func TestPool_DialThatFailsNamesTheAddress(t *testing.T) {
	cause := errors.New("no certificate")
	pool := fanout.NewPool(func(term.Member) (*grpc.ClientConn, error) { return nil, cause })
	if _, err := pool.Connection(member("a")); !errors.Is(err, cause) || err.Error() != `dial "a:1": no certificate` {
		t.Errorf("Connection() = %v, want the address and the cause", err)
	}
	if connections := pool.Connections(); connections != 0 {
		t.Errorf("%d connections", connections)
	}
}

func TestFailure_NamesReplicaCodeAndCause(t *testing.T) {
	failure := fanout.Failure{Member: member("a"), Err: status.Error(codes.DeadlineExceeded, "context deadline exceeded"), After: 20 * time.Millisecond}
	want := merge.Failure{Service: "leasesvc", ReplicaID: "a", Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 20ms"}
	if diff := cmp.Diff([]merge.Failure{want}, fanout.Parts([]fanout.Failure{failure})); diff != "" {
		t.Errorf("Parts() (-want +got):\n%s", diff)
	}
	strange := fanout.Failure{Member: member("a"), Err: status.Error(codes.Code(99), "a long cause")}
	if got, want := strange.Text(6), "leasesvc a at a:1: CODE_99: a long…"; got != want {
		t.Errorf("Text() = %q, want %q", got, want)
	}
}
