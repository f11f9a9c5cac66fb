package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// after lets the bubble's time pass and everything that is due happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func expect(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestRun_BeatsAtTheGrantedIntervalInOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}})
		after(25 * time.Second)
		expect(t, "messages", []message{
			{Introduced: 2}, {At: interval, Beats: 2}, {At: 2 * interval, Beats: 2},
		}, s.heard())
		want := agent.Status{
			Connected: true, Target: "a", Targets: []agent.TargetStatus{{Target: "a", Connected: true, Holders: 2, Welcome: 2}}, Epoch: 7, Interval: interval, TTL: 4 * interval,
			LastAnswer: time.Now().Add(-5 * time.Second), Streams: 1, Holders: 2, Welcome: 2,
		}
		expect(t, "status", want, a.Status())
	})
}

func TestAddRemove_TakeEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial})
		after(time.Minute)
		expect(t, "without holders", []message(nil), s.heard())

		var many []agent.Holder
		for i := range 2500 {
			many = append(many, node(fmt.Sprintf("n%d", i)))
		}
		if err := a.Add(many...); err != nil {
			t.Fatal(err)
		}
		after(0)
		minute := time.Minute
		expect(t, "2,500 at once", []message{
			{At: minute, Introduced: 1000}, {At: minute, Introduced: 1000}, {At: minute, Introduced: 500},
		}, s.heard())

		after(5 * time.Second)
		if err := a.Add(node("late"), node("n1")); err != nil {
			t.Fatal(err)
		}
		after(0)
		expect(t, "one more", []message{{At: 65 * time.Second, Introduced: 1}}, s.heard())
		after(5 * time.Second)
		expect(t, "beat", []message{{At: 70 * time.Second, Beats: 2501}}, s.heard())

		a.Remove(many[1:]...)
		after(interval)
		expect(t, "two left", []message{{At: 80 * time.Second, Beats: 2}}, s.heard())
		a.Remove(node("late"), node("n0"))
		after(5 * interval)
		expect(t, "nobody left", []message(nil), s.heard())
		if a.Status().Connected {
			t.Error("still connected for nobody")
		}
	})
}

func TestRun_MissingAnswersMakeItConnectAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		muted := false
		s.change = func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if muted = muted || answer.Grant != nil; stream == 1 && muted {
				return nil // the first beat and all that follows stays unanswered
			}
			return answer
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		after(3*interval - time.Second)
		expect(t, "before two intervals have passed without an answer",
			[]message{{Introduced: 1}, {At: interval, Beats: 1}, {At: 2 * interval, Beats: 1}}, s.heard())
		after(1*time.Second + interval/4)
		messages := s.heard()
		last := messages[len(messages)-1]
		if got := a.Status(); last.Introduced != 1 || got.Streams != 2 || !strings.Contains(got.LastError, "no answer in time") {
			t.Errorf("messages %v, status %+v", messages, got)
		}
	})
}

func TestRun_SilentServerIsLeftForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, s := serve(t), serve(t)
		dead.change = func(int, *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse { return nil }
		a := run(t, agent.Config{
			Targets: []string{"absent", "dead", "a"}, Dial: network{"dead": dead, "a": s}.dial, Holders: []agent.Holder{node("n1")},
		})
		after(15 * time.Second)
		if got := a.Status(); got.Target != "a" || got.Welcome != 1 {
			t.Errorf("status %+v, want welcome at a", got)
		}
	})
}

func TestRun_HostThatDropsPacketsIsLeftForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hole, s := &server{listener: bufconn.Listen(1)}, serve(t) // nobody accepts
		a := run(t, agent.Config{
			Targets: []string{"hole", "a"}, Dial: network{"hole": hole, "a": s}.dial, Holders: []agent.Holder{node("n1")},
		})
		after(11 * time.Second)
		if got := a.Status(); got.Target != "a" || !strings.Contains(got.LastError, "open stream to hole: no answer in time") {
			t.Errorf("status %+v, want connected to a after AnswerTimeout", got)
		}
	})
}

// The sessions live for four intervals: the first ask of a leader that died without a word must not cost a second timeout.
func TestRun_LeaderThatFellSilentIsNotAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dying, s := serve(t), serve(t)
		dying.change = func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if stream > 1 || answer.Grant != nil {
				return nil
			}
			return answer
		}
		a := run(t, agent.Config{
			Targets: []string{"dying", "a"}, Dial: network{"dying": dying, "a": s}.dial, Holders: []agent.Holder{node("n1")},
		})
		after(3*interval + interval/4)
		if got := a.Status(); got.Target != "a" || got.Welcome != 1 {
			t.Errorf("status %+v, want welcome at a", got)
		}
	})
}

func TestRun_FollowsTheLeader(t *testing.T) {
	for name, leave := range map[string]func(*server){
		"MOVE": func(s *server) {
			s.change = func(_ int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				answer.Directive, answer.MoveTo = leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE, "leader"
				return answer
			}
		},
		"NOT_LEADER": func(s *server) {
			s.end = func(int) error { return rpcerror.NotLeader("leasesvc", "leader") }
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, leader := serve(t), serve(t)
			leave(s)
			a := run(t, agent.Config{
				Targets: []string{"a", "a"}, Dial: network{"a": s, "leader": leader}.dial, Holders: []agent.Holder{node("n1")},
			})
			after(interval)
			if got := a.Status(); got.Target != "leader" || got.Welcome != 1 {
				t.Errorf("%s: status %+v, want welcome at the leader", name, got)
			}
			if n := len(s.heard()); n != 1 {
				t.Errorf("%s: %d messages to the wrong replica, want 1", name, n)
			}
		})
	}
}

func TestRun_BrokenStreamIsMadeAgainWithinAQuarterOfTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		after(interval / 4)
		messages := s.heard()
		if len(messages) != 2 || messages[1].Introduced != 1 || messages[1].At == 0 {
			t.Errorf("messages %v, want a second introduction after a pause", messages)
		}
	})
}

func TestRun_RefusedHandleIsIntroducedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		refused := false
		s.change = func(_ int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if answer.Grant != nil && !refused {
				refused = true
				answer.RefusedHandles = []*leasev1.RefusedHandle{{Handle: 1, Refusal: &leasev1.Refusal{Reason: "UNKNOWN_HANDLE"}}}
			}
			return answer
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}})
		after(interval)
		expect(t, "messages", []message{{Introduced: 2}, {At: interval, Beats: 2}, {At: interval, Introduced: 1}}, s.heard())
	})
}

func TestRun_SupersededHolderStopsAndIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if answer.Grant != nil {
				answer.RefusedHandles = []*leasev1.RefusedHandle{{Handle: 1, Refusal: &leasev1.Refusal{Reason: "SUPERSEDED"}}}
			}
			return answer
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		after(10 * interval)
		expect(t, "messages", []message{{Introduced: 1}, {At: interval, Beats: 1}}, s.heard())
		expect(t, "superseded", []agent.Holder{node("n1")}, a.Status().Superseded)

		reborn := node("n1")
		reborn.BootID = "2"
		if err := a.Add(reborn); err != nil {
			t.Fatal(err)
		}
		after(interval / 4)
		if got := a.Status(); got.Welcome != 1 || got.Superseded != nil {
			t.Errorf("after a reboot: %+v, want it welcome", got)
		}
	})
}

func TestRun_RefusedHolderIsTriedAgainWhenTheServerSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			for _, w := range answer.Welcomes {
				if time.Since(s.begin) < 30*time.Second {
					w.Handle = 0
					w.Result = &leasev1.Welcome_Refusal{Refusal: &leasev1.Refusal{Reason: "TOO_MANY_HOLDERS", RetryAfter: durationpb.New(20 * time.Second)}}
				}
			}
			return answer
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		after(time.Second)
		expect(t, "refused", []agent.Refusal{{Holder: node("n1"), Reason: "TOO_MANY_HOLDERS"}}, a.Status().Refused)
		after(49 * time.Second)
		expect(t, "messages", []message{
			{Introduced: 1}, {At: 20 * time.Second, Introduced: 1}, {At: 40 * time.Second, Introduced: 1}, {At: 50 * time.Second, Beats: 1},
		}, s.heard())
		expect(t, "refused", []agent.Refusal(nil), a.Status().Refused)
	})
}

// Another stream may lead to a replica that has room; and a stream on which nobody was introduced would have nothing to do.
func TestRun_RefusedHolderIsIntroducedAgainOnANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if stream == 1 {
				answer.Welcomes[0] = &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{
					Refusal: &leasev1.Refusal{Reason: "TOO_MANY_HOLDERS", RetryAfter: durationpb.New(time.Hour)},
				}}
			}
			return answer
		}
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		after(interval)
		if got := a.Status(); got.Welcome != 1 || got.Streams != 2 {
			t.Errorf("status %+v, want it welcome on the second stream", got)
		}
	})
}

// Questions and answers of a full stream are larger than what gRPC buffers in either direction.
func TestRun_FullStreamIsIntroducedThoughItsAnswersAreLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			for i, w := range answer.Welcomes {
				if i%2 == 0 {
					w.Handle = 0
					w.Result = &leasev1.Welcome_Refusal{Refusal: &leasev1.Refusal{Reason: "TOO_MANY_HOLDERS", Message: strings.Repeat("full ", 20)}}
				}
			}
			return answer
		}
		var many []agent.Holder
		for i := range agent.MaxHolders {
			many = append(many, node(fmt.Sprintf("n%d.%s", i, strings.Repeat("x", 200))))
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: many})
		after(time.Second)
		if got := a.Status(); got.Welcome != agent.MaxHolders/2 || got.Streams != 1 {
			t.Errorf("%d welcome on stream %d, want %d on the first", got.Welcome, got.Streams, agent.MaxHolders/2)
		}
	})
}

func TestRun_DirectivesAreFollowed(t *testing.T) {
	for directive, want := range map[leasev1.StreamHeartbeatsResponse_Directive]struct {
		messages []message
		streams  int64
	}{
		leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN: {messages: []message{{Introduced: 1}, {At: interval, Beats: 1}}, streams: 1},
		leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:    {messages: []message{{Introduced: 1}, {At: interval, Beats: 1}, {At: interval, Introduced: 1}}, streams: 1},
		leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH:    {messages: []message{{Introduced: 1}, {At: interval, Beats: 1}, {Introduced: 1}}, streams: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t)
			s.change = func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				if answer.Grant != nil && stream == 1 {
					answer.Directive = directive
				}
				return answer
			}
			a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
			after(interval + interval/4)
			got := s.heard()
			// When a new stream begins is a matter of jitter.
			if diff := cmp.Diff(want.messages, got, cmpopts.IgnoreFields(message{}, "At")); diff != "" || a.Status().Streams != want.streams {
				t.Errorf("%v: %d streams, messages (-want +got):\n%s", directive, a.Status().Streams, diff)
			}
		})
	}
}

func TestRun_NonsensicalAnswersEndTheStreamAndNothingElse(t *testing.T) {
	for name, spoil := range map[string]func(*leasev1.StreamHeartbeatsResponse){
		"wrong sequence":    func(a *leasev1.StreamHeartbeatsResponse) { a.Sequence += 5 },
		"too many welcomes": func(a *leasev1.StreamHeartbeatsResponse) { a.Welcomes = append(a.Welcomes, a.Welcomes...) },
		"no welcome":        func(a *leasev1.StreamHeartbeatsResponse) { a.Welcomes = nil },
		"empty welcome":     func(a *leasev1.StreamHeartbeatsResponse) { a.Welcomes[0] = &leasev1.Welcome{} },
		"negative interval": func(a *leasev1.StreamHeartbeatsResponse) {
			a.Welcomes[0].GetGrant().NextInterval = durationpb.New(-time.Hour)
		},
		"no interval at all": func(a *leasev1.StreamHeartbeatsResponse) { a.Welcomes[0].GetGrant().NextInterval = nil },
		"unknown handle refused": func(a *leasev1.StreamHeartbeatsResponse) {
			a.RefusedHandles = []*leasev1.RefusedHandle{{Handle: 99}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t)
			s.change = func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				if stream == 1 && len(answer.Welcomes) > 0 {
					spoil(answer)
				}
				return answer
			}
			a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
			after(2 * time.Minute)
			if got := a.Status(); got.Welcome != 1 {
				t.Errorf("%s: status %+v, want it welcome in the end", name, got)
			}
			if n := len(s.heard()); n > 20 {
				t.Errorf("%s: %d messages in two minutes", name, n)
			}
		})
	}
}

func TestNew_NamesEveryProblem(t *testing.T) {
	_, err := agent.New(agent.Config{Holders: []agent.Holder{{Class: "node"}}, MinBackoff: time.Minute})
	for _, want := range []string{"no targets", "no Dial", "name:", "boot id:", "backoff 1m0s to 5s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	many := make([]agent.Holder, agent.MaxHolders+1)
	for i := range many {
		many[i] = node(fmt.Sprint(i))
	}
	if _, err := agent.New(agent.Config{Targets: []string{"a"}, Dial: network{}.dial, Holders: many}); err == nil {
		t.Error("more holders than a stream carries were accepted")
	}
}
