package agent_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// times returns when messages came.
func times(messages []message) []time.Duration {
	var at []time.Duration
	for _, m := range messages {
		at = append(at, m.At)
	}
	return at
}

func TestRun_ForwardedHoldersMoveTogetherAfterARandomTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holders := newCluster(t, always("a")), nodes(500)
		c.network["a"].forwards = true
		a := run(t, agent.Config{Targets: []string{"a", "b", "c"}, Dial: c.network.dial, Holders: holders})
		advance(interval / 2)
		c.received()
		c.setOwner(always("b"))
		advance(interval / 2)
		expect(t, "the forwarded beat", []message{{At: interval, Beats: 500}}, c.received()["a"])
		advance(interval / 2)
		received := c.received()
		expect(t, "old owner", []message(nil), received["a"])
		if got := received["b"]; len(got) != 1 || got[0].Registered != 500 || got[0].At == interval {
			t.Errorf("new owner received %v, want one message after %v", got, interval)
		}
		expectTargets(t, a, map[string]int{"b": 500})
		advance(interval)
		if got := c.received()["b"]; len(got) != 1 || got[0].Beats != 500 {
			t.Errorf("new owner received %v, want one message of beats", got)
		}
	})
}

// Without a granted interval there is no random time to wait.
func TestRun_HoldersForwardedAtTheFirstContactMoveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, always("b"))
		c.network["a"].forwards = true
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: c.network.dial, Holders: nodes(10)})
		advance(0)
		expectTargets(t, a, map[string]int{"b": 10})
	})
}

func TestRun_RateLimitedHoldersReturnAtDifferentTimes(t *testing.T) {
	const asked = 8 * time.Second
	var came []time.Duration
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t)
			s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				for _, w := range response.RegistrationResults {
					if time.Since(s.begin) < asked {
						w.Handle = 0
						w.Result = &leasev1.RegistrationResult_Rejection{Rejection: &leasev1.Rejection{Reason: "REGISTRATION_RATE_LIMITED", Code: code.Code_UNAVAILABLE, RetryAfter: durationpb.New(asked)}}
					}
				}
				return response
			}
			run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(100)})
			advance(asked - 1)
			expect(t, "before", []message{{Registered: 100}}, s.received())
			advance(asked/2 + 1)
			got := s.received()
			if len(got) != 1 || got[0].Registered != 100 {
				t.Fatalf("messages %v, want one message", got)
			}
			came = append(came, got[0].At)
		})
	}
	if slices.Min(came) == slices.Max(came) {
		t.Errorf("all agents returned after %v", came[0])
	}
}

func TestRun_RateLimitedStreamReopensWhenTheServerSays(t *testing.T) {
	const asked = 8 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s, other := serve(t), serve(t)
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.New(codes.Unavailable, "REGISTRATION_RATE_LIMITED", "rate-limited", rpcerror.WithRetryAfter(asked))
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a", "other"}, Dial: network{"a": s, "other": other}.dial, Holders: nodes(3)})
		advance(asked + asked/2)
		got := times(s.received())
		if len(got) != 2 || got[1] < asked {
			t.Errorf("messages at %v, want the second not before %v", got, asked)
		}
		if n := len(other.received()); n != 0 || a.Status().Registered != 3 {
			t.Errorf("%d messages elsewhere, status %+v", n, a.Status())
		}
	})
}

// A session would not survive the pause that the server asks for.
func TestRun_LongServerPauseIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.New(codes.ResourceExhausted, "TOO_MANY_MESSAGES", "too many messages", rpcerror.WithRetryAfter(24*time.Hour))
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(1)})
		advance(90 * time.Second)
		if got := times(s.received()); len(got) < 2 || got[1] < time.Minute || a.Status().Registered != 1 {
			t.Errorf("messages at %v, status %+v", got, a.Status())
		}
	})
}

func TestRun_EachClassBeatsAtItsOwnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.intervals = map[string]time.Duration{"sidecar": 25 * time.Second, "agent": 4 * time.Second}
		of := func(class, name string) agent.Holder { return agent.Holder{Class: class, Name: name, BootID: "1"} }
		slow := []agent.Holder{of("sidecar", "s1"), of("sidecar", "s2"), of("sidecar", "s3")}
		a := run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial,
			Holders: append([]agent.Holder{node("n1"), node("n2"), of("agent", "a1")}, slow...),
		})
		advance(26 * time.Second)
		at := map[int][]time.Duration{}
		for _, m := range s.received() {
			at[m.Beats] = append(at[m.Beats], m.At)
		}
		second := time.Second
		expect(t, "times by the number of beats in a message", map[int][]time.Duration{
			0: {0}, 1: {4 * second, 8 * second, 12 * second, 16 * second, 20 * second, 24 * second}, 2: {10 * second, 20 * second}, 3: {25 * second},
		}, at)

		// A class without holders causes no more messages, and the last class keeps its interval.
		a.Remove(node("n1"), node("n2"), of("agent", "a1"))
		advance(50 * time.Second)
		expect(t, "one class left", []message{{At: 50 * second, Beats: 3}, {At: 75 * second, Beats: 3}}, s.received())
		if err := a.Add(node("n9")); err != nil {
			t.Fatal(err)
		}
		advance(11 * time.Second)
		expect(t, "a class is added", []message{{At: 76 * second, Registered: 1}, {At: 86 * second, Beats: 1}}, s.received())
	})
}

// The shortest interval on a stream decides how soon a silent server is detected, for all its
// classes.
func TestRun_ShortestIntervalDetectsASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.intervals = map[string]time.Duration{"sidecar": 5 * time.Minute}
		mute := false
		s.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if mute = mute || response.Grant != nil; stream == 1 && mute {
				return nil
			}
			return response
		}
		a := run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial,
			Holders: []agent.Holder{node("n1"), {Class: "sidecar", Name: "s1", BootID: "1"}},
		})
		advance(3*interval + interval/4)
		if got := a.Status(); got.Streams != 2 || got.Registered != 2 {
			t.Errorf("status %+v, want both on a second stream", got)
		}
	})
}
