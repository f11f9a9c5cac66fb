package api

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestLimiter_AdmitsABurstAndThenItsRate(t *testing.T) {
	l := newLimiter(100)
	for _, step := range []struct {
		after       time.Duration
		callers, in int
	}{
		{callers: 150, in: 100},
		{callers: 1, in: 0},
		{after: 500 * time.Millisecond, callers: 80, in: 50},
		{after: time.Hour, callers: 1000, in: 100},
	} {
		if got := l.admit(start.Add(step.after), step.callers); got != step.in {
			t.Errorf("after %v: %d of %d admitted, want %d", step.after, got, step.callers, step.in)
		}
	}
}

func TestLimiter_EachRejectedCallerReturnsAtAnotherTime(t *testing.T) {
	l := newLimiter(100)
	for i := range 5 {
		if got, want := l.retryAfter(start), time.Duration(i+1)*10*time.Millisecond; got != want {
			t.Errorf("caller %d waits %v, want %v", i, got, want)
		}
	}
	if got := l.retryAfter(start.Add(time.Hour)); got != 10*time.Millisecond {
		t.Errorf("an hour later: %v, want 10ms", got)
	}
}

func TestLimiter_NeverAdmitsMoreThanBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 1000).Draw(t, "rate")
		l := newLimiter(rate)
		elapsed, in := time.Duration(0), 0
		for range rapid.IntRange(1, 50).Draw(t, "rounds") {
			elapsed += time.Duration(rapid.IntRange(0, int(2*time.Second)).Draw(t, "pause"))
			in += l.admit(start.Add(elapsed), rapid.IntRange(0, 2000).Draw(t, "callers"))
			if most := float64(rate) * (1 + elapsed.Seconds()); float64(in) > most+1e-6 {
				t.Fatalf("%d admitted within %v at a rate of %d", in, elapsed, rate)
			}
		}
	})
}

func TestMeter_SlowsDownFirstThenRejects(t *testing.T) {
	s := newSenders(10, 10)
	_, m := s.openMeter("a")
	counts := map[messageRate]int{}
	for range 200 {
		counts[m.count(start)]++
	}
	if counts[withinRate] != 10 || counts[overRate] != 90 || counts[farOverRate] != 100 {
		t.Errorf("%d within, %d over and %d far over the rate; want 10, 90 and 100", counts[withinRate], counts[overRate], counts[farOverRate])
	}
	_, other := s.openMeter("b")
	if got := other.count(start); got != withinRate {
		t.Errorf("another sender: %v, want withinRate", got)
	}
	s.closeMeter("a", start)
	_, again := s.openMeter("a")
	if got := again.count(start.Add(time.Millisecond)); got != farOverRate {
		t.Errorf("on a new stream: %v, want farOverRate as before", got)
	}
	if got := m.count(start.Add(10 * time.Second)); got != withinRate {
		t.Errorf("after a pause: %v, want withinRate", got)
	}
}

func TestMeter_IsRemovedWithTheLastStreamOfAnIdleSender(t *testing.T) {
	s := newSenders(10, 10)
	_, m := s.openMeter("a")
	m.count(start)
	s.openMeter("a")
	s.closeMeter("a", start.Add(time.Hour))
	if len(s.meters) != 1 {
		t.Error("the meter was removed although a stream is open")
	}
	s.closeMeter("a", start.Add(time.Hour))
	if len(s.meters) != 0 {
		t.Error("the meter of an idle sender without streams remains")
	}
}

func TestRegistrations_DeferredHoldersKeepTheirSessions(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: 2})
	f.open(t).register(holders(0, 2)...)
	before, _ := f.lease("node-0")
	time.Sleep(2 * time.Millisecond)
	response := f.open(t).send(&leasev1.StreamHeartbeatsRequest{Sequence: 9, Registrations: registrations(holders(0, 3))})
	for i, w := range response.RegistrationResults {
		rejection := w.GetRejection()
		if pause := rejection.GetRetryAfter().AsDuration(); rejection.GetReason() != "REGISTRATION_RATE_LIMITED" || pause <= 0 || pause > 5*time.Second {
			t.Errorf("holder %d: %v, want REGISTRATION_RATE_LIMITED with retry_after", i, w)
		}
	}
	after, found := f.lease("node-0")
	if !found || after.Sequence != 9 || !after.ObserveTime.After(before.ObserveTime) {
		t.Errorf("the beat of a deferred holder did not renew its session: %+v after %+v", after, before)
	}
	if _, found := f.lease("node-2"); found {
		t.Error("a deferred holder without a session got one")
	}
}

// Ten thousand agents with one node each lose their connections together, and reconnect in the same
// second.
func TestRegistrations_TenThousandReconnectInSeconds(t *testing.T) {
	const agents = 10_000
	f := newFixture(t, setup{})
	for first := 0; first < agents; first += 1000 {
		f.server.registrations = newLimiter(agents) // they registered before
		f.open(t).register(holders(first, 1000)...)
	}
	f.server.registrations = newLimiter(f.server.MaxRegistrations)
	var running sync.WaitGroup
	var deferred atomic.Int64
	begin := time.Now()
	for i := range agents {
		running.Go(func() {
			c := f.open(t)
			for {
				w := c.register(holders(i, 1)...).RegistrationResults[0]
				if w.Handle != 0 {
					return
				}
				deferred.Add(1)
				time.Sleep(w.GetRejection().RetryAfter.AsDuration())
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	if got := f.sessions.Counts(); got.Alive+got.Suspect != agents || got.Expired > 0 {
		t.Errorf("counts %+v, want a live one of all %d", got, agents)
	}
	if took > time.Minute {
		t.Errorf("all were registered after %v, want seconds", took)
	}
	t.Logf("all were registered after %v and %d deferrals", took, deferred.Load())
}

func TestSender_IsToldToSlowDownThenRejected(t *testing.T) {
	f := newFixture(t, setup{maxMessages: 50})
	c := f.openAs(t, node("node-0"))
	c.register(holders(0, 1)...)
	var directives []leasev1.StreamHeartbeatsResponse_Directive
	for {
		err := c.respond(t.Context(), &leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Handles: []uint32{1}})
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted || rpcerror.ReasonOf(err) != "TOO_MANY_MESSAGES" || rpcerror.RetryAfterOf(err) <= 0 {
				t.Errorf("error %v, want TOO_MANY_MESSAGES with a pause", err)
			}
			break
		}
		if directives = append(directives, c.response.Directive); len(directives) > 5000 {
			t.Fatal("5,000 messages at once at a rate of 50 were accepted")
		}
	}
	if last := directives[len(directives)-1]; len(directives) < 400 || last != leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN {
		t.Errorf("rejected after %d messages and %v, want SLOW_DOWN long before", len(directives), last)
	}
	if got := f.openAs(t, node("node-1")).register(holders(1, 1)...).Directive; got != 0 {
		t.Errorf("another sender is told %v", got)
	}
}

// closedStream is the stream of a client that ends it without a message.
type closedStream struct {
	heartbeatStream
	ctx context.Context
}

func (s closedStream) Context() context.Context { return s.ctx }
func (closedStream) RecvMsg(any) error          { return io.EOF }

// The holders of a rejected stream do not beat, so the pause must be short compared to the shortest
// grace period.
func TestStreamHeartbeats_RejectedStreamReturnsWithinTheGracePeriod(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: 1, furtherClasses: []class.Class{{
		Name: "fast", Namespace: "fast", HeartbeatInterval: 200 * time.Millisecond, SuspectAfter: 1, Grace: time.Second,
		RenewInterval: time.Second, LeaseDuration: 2 * time.Second,
	}}})
	rejected := 0
	for range 100 {
		err := f.server.StreamHeartbeats(closedStream{ctx: as(t, unchecked())})
		if pause := rpcerror.RetryAfterOf(err); pause > time.Second/2 {
			t.Fatalf("the pause is %v for a grace period of a second: %v", pause, err)
		} else if pause > 0 {
			rejected++
		}
	}
	if rejected == 0 {
		t.Error("no stream was rejected")
	}
}

// Idle streams of one identity would need the memory for the agents of thousands of nodes.
func TestStreamHeartbeats_OneIdentityHasABoundedNumberOfStreams(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: unlimited})
	eve := node("node-0")
	for range maxOpen {
		f.server.senders.open(eve) // a stream that sends nothing
	}
	for _, method := range []string{leasev1.HeartbeatService_StreamHeartbeats_FullMethodName, leasev1.HeartbeatService_Heartbeat_FullMethodName} {
		_, err := f.begin(t, eve, method)
		if rpcerror.ReasonOf(err) != reasonTooManyInFlight || rpcerror.RetryAfterOf(err) <= 0 {
			t.Errorf("%s: %v, want %s with a pause", method, err, reasonTooManyInFlight)
		}
		if _, err := f.begin(t, node("node-1"), method); err != nil {
			t.Errorf("%s of another node: %v", method, err)
		}
	}
	f.server.senders.closeMeter(senderName(&eve.User), time.Now())
	if _, err := f.begin(t, eve, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName); err != nil {
		t.Errorf("a stream after another has ended: %v", err)
	}
}

// An agent whose holders were registered in four messages, or are of four classes, sends four
// messages per interval.
func TestStreamHeartbeats_OnlyEarlyHoldersAreToldToSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFixture(t, setup{}).open(t)
		const messages = 4
		for i := range messages {
			c.register(holders(i, 1)...)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		for round := range 5 {
			for i := range uint32(messages) {
				if got := c.beatHandles(i + 1); got.Directive != 0 || got.Grant == nil {
					t.Fatalf("round %d, message %d: %v", round, i, got)
				}
				time.Sleep(time.Second)
			}
			time.Sleep(time.Second)
		}
		var directives []string
		for range maxEarly + 1 {
			directives = append(directives, c.beatHandles(1).Directive.String())
			time.Sleep(time.Second)
		}
		want := append(slices.Repeat([]string{"DIRECTIVE_UNSPECIFIED"}, maxEarly), "DIRECTIVE_SLOW_DOWN")
		if !slices.Equal(want, directives) {
			t.Errorf("a holder that beats every second is told %s, want %s", fmt.Sprint(directives), want)
		}
	})
}
