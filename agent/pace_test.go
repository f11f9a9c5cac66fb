package agent_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

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

func TestRun_HoldersWhoseBeatsAreHandedOnTakeTheirTimeAndMoveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, holders := newTown(t, always("a")), fleetOf(500)
		o.network["a"].forwards = true
		a := run(t, agent.Config{Targets: []string{"a", "b", "c"}, Dial: o.network.dial, Holders: holders})
		after(interval / 2)
		o.heard()
		o.change(always("b"))
		after(interval / 2)
		expect(t, "the beat that is handed on", []message{{At: interval, Beats: 500}}, o.heard()["a"])
		after(interval / 2)
		heard := o.heard()
		expect(t, "old owner", []message(nil), heard["a"])
		if got := heard["b"]; len(got) != 1 || got[0].Introduced != 500 || got[0].At == interval {
			t.Errorf("new owner heard %v, want all of them at once and some time after %v", got, interval)
		}
		expectTargets(t, a, map[string]int{"b": 500})
		after(interval)
		if got := o.heard()["b"]; len(got) != 1 || got[0].Beats != 500 {
			t.Errorf("new owner heard %v, want one message of beats", got)
		}
	})
}

// Whom no server has told its interval has nothing to measure its time by.
func TestRun_HandedOnAtTheFirstContactMoveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, always("b"))
		o.network["a"].forwards = true
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: o.network.dial, Holders: fleetOf(10)})
		after(0)
		expectTargets(t, a, map[string]int{"b": 10})
	})
}

func TestRun_PacedHoldersComeBackSpreadAndNotTooEarly(t *testing.T) {
	const asked = 8 * time.Second
	var came []time.Duration
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t)
			s.change = func(_ int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				for _, w := range answer.Welcomes {
					if time.Since(s.begin) < asked {
						w.Handle = 0
						w.Result = &leasev1.Welcome_Refusal{Refusal: &leasev1.Refusal{Reason: "PACED", RetryAfter: durationpb.New(asked)}}
					}
				}
				return answer
			}
			run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: fleetOf(100)})
			after(asked - 1)
			expect(t, "before", []message{{Introduced: 100}}, s.heard())
			after(asked/2 + 1)
			got := s.heard()
			if len(got) != 1 || got[0].Introduced != 100 {
				t.Fatalf("messages %v, want all of them in one", got)
			}
			came = append(came, got[0].At)
		})
	}
	if slices.Min(came) == slices.Max(came) {
		t.Errorf("all agents came back after %v", came[0])
	}
}

func TestRun_PacedStreamIsOpenedAgainWhereItWasWhenTheServerSays(t *testing.T) {
	const asked = 8 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s, other := serve(t), serve(t)
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.New(codes.Unavailable, "PACED", "one after another", rpcerror.WithRetryAfter(asked))
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a", "other"}, Dial: network{"a": s, "other": other}.dial, Holders: fleetOf(3)})
		after(asked + asked/2)
		got := times(s.heard())
		if len(got) != 2 || got[1] < asked {
			t.Errorf("messages at %v, want the second not before %v", got, asked)
		}
		if n := len(other.heard()); n != 0 || a.Status().Welcome != 3 {
			t.Errorf("%d messages elsewhere, status %+v", n, a.Status())
		}
	})
}

// A pause that no session would survive is not the server's to ask for.
func TestRun_EndlessPauseIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.New(codes.ResourceExhausted, "TOO_MANY_MESSAGES", "far too many", rpcerror.WithRetryAfter(24*time.Hour))
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: fleetOf(1)})
		after(90 * time.Second)
		if got := times(s.heard()); len(got) < 2 || got[1] < time.Minute || a.Status().Welcome != 1 {
			t.Errorf("messages at %v, status %+v", got, a.Status())
		}
	})
}

func TestRun_EveryClassBeatsAtItsOwnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.intervals = map[string]time.Duration{"sidecar": 25 * time.Second, "agent": 4 * time.Second}
		of := func(class, name string) agent.Holder { return agent.Holder{Class: class, Name: name, BootID: "1"} }
		slow := []agent.Holder{of("sidecar", "s1"), of("sidecar", "s2"), of("sidecar", "s3")}
		a := run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial,
			Holders: append([]agent.Holder{node("n1"), node("n2"), of("agent", "a1")}, slow...),
		})
		after(26 * time.Second)
		at := map[int][]time.Duration{}
		for _, m := range s.heard() {
			at[m.Beats] = append(at[m.Beats], m.At)
		}
		second := time.Second
		expect(t, "beats by how many beat", map[int][]time.Duration{
			0: {0}, 1: {4 * second, 8 * second, 12 * second, 16 * second, 20 * second, 24 * second}, 2: {10 * second, 20 * second}, 3: {25 * second},
		}, at)

		// A class that has left costs no more messages, and one that is left alone keeps its interval.
		a.Remove(node("n1"), node("n2"), of("agent", "a1"))
		after(50 * time.Second)
		expect(t, "one class", []message{{At: 50 * second, Beats: 3}, {At: 75 * second, Beats: 3}}, s.heard())
		if err := a.Add(node("n9")); err != nil {
			t.Fatal(err)
		}
		after(11 * time.Second)
		expect(t, "and another", []message{{At: 76 * second, Introduced: 1}, {At: 86 * second, Beats: 1}}, s.heard())
	})
}

// The shortest interval on a stream decides how soon it is noticed that nobody answers, for all who are on it.
func TestRun_SilenceIsNoticedByTheClassThatBeatsMostOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.intervals = map[string]time.Duration{"sidecar": 5 * time.Minute}
		mute := false
		s.change = func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if mute = mute || answer.Grant != nil; stream == 1 && mute {
				return nil
			}
			return answer
		}
		a := run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial,
			Holders: []agent.Holder{node("n1"), {Class: "sidecar", Name: "s1", BootID: "1"}},
		})
		after(3*interval + interval/4)
		if got := a.Status(); got.Streams != 2 || got.Welcome != 2 {
			t.Errorf("status %+v, want both on a second stream", got)
		}
	})
}
