package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// advance lets d pass and waits until all goroutines of the bubble block.
func advance(d time.Duration) {
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
		advance(25 * time.Second)
		expect(t, "messages", []message{
			{Registered: 2}, {At: interval, Beats: 2}, {At: 2 * interval, Beats: 2},
		}, s.received())
		want := agent.Status{
			Connected: true, Target: "a", Targets: []agent.TargetStatus{{Target: "a", Connected: true, Holders: 2, Registered: 2}}, Epoch: 7, Interval: interval, TTL: 4 * interval,
			LastAnswer: time.Now().Add(-5 * time.Second), Streams: 1, Holders: 2, Registered: 2,
			Registrations: 2, Beats: 4, Answers: map[string]uint64{"none": 3},
		}
		expect(t, "status", want, a.Status())
	})
}

func TestAddRemove_TakeEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial})
		advance(time.Minute)
		expect(t, "without holders", []message(nil), s.received())

		var many []agent.Holder
		for i := range 2500 {
			many = append(many, node(fmt.Sprintf("n%d", i)))
		}
		if err := a.Add(many...); err != nil {
			t.Fatal(err)
		}
		advance(0)
		minute := time.Minute
		expect(t, "2,500 at once", []message{
			{At: minute, Registered: 1000}, {At: minute, Registered: 1000}, {At: minute, Registered: 500},
		}, s.received())

		advance(5 * time.Second)
		if err := a.Add(node("late"), node("n1")); err != nil {
			t.Fatal(err)
		}
		advance(0)
		expect(t, "one more", []message{{At: 65 * time.Second, Registered: 1}}, s.received())
		advance(5 * time.Second)
		expect(t, "beat", []message{{At: 70 * time.Second, Beats: 2501}}, s.received())

		a.Remove(many[1:]...)
		advance(interval)
		expect(t, "two left", []message{{At: 80 * time.Second, Beats: 2}}, s.received())
		a.Remove(node("late"), node("n0"))
		advance(5 * interval)
		expect(t, "no holder left", []message(nil), s.received())
		if a.Status().Connected {
			t.Error("still connected without holders")
		}
	})
}

func TestRun_MissingResponsesCauseAReconnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		muted := false
		s.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if muted = muted || response.Grant != nil; stream == 1 && muted {
				return nil // no response to the first beat and to later messages
			}
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(3*interval - time.Second)
		expect(t, "before two intervals without a response",
			[]message{{Registered: 1}, {At: interval, Beats: 1}, {At: 2 * interval, Beats: 1}}, s.received())
		advance(1*time.Second + interval/4)
		messages := s.received()
		last := messages[len(messages)-1]
		if got := a.Status(); last.Registered != 1 || got.Streams != 2 || !strings.Contains(got.LastError, "no answer in time") {
			t.Errorf("messages %v, status %+v", messages, got)
		}
	})
}

func TestRun_SilentServerIsReplacedByTheNextTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, s := serve(t), serve(t)
		dead.silence()
		a := run(t, agent.Config{
			Targets: []string{"absent", "dead", "a"}, Dial: network{"dead": dead, "a": s}.dial, Holders: []agent.Holder{node("n1")},
		})
		advance(15 * time.Second)
		if got := a.Status(); got.Target != "a" || got.Registered != 1 {
			t.Errorf("status %+v, want registered at a", got)
		}
	})
}

func TestRun_HostThatDropsPacketsIsReplacedByTheNextTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hole, s := &server{listener: bufconn.Listen(1)}, serve(t) // nothing accepts connections
		a := run(t, agent.Config{
			Targets: []string{"hole", "a"}, Dial: network{"hole": hole, "a": s}.dial, Holders: []agent.Holder{node("n1")},
		})
		advance(11 * time.Second)
		if got := a.Status(); got.Target != "a" || !strings.Contains(got.LastError, "open stream to hole: no answer in time") {
			t.Errorf("status %+v, want connected to a after AnswerTimeout", got)
		}
	})
}

// The sessions survive four intervals: a server that became silent must not cost a second timeout.
func TestRun_ServerThatBecameSilentIsNotTriedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent, s := serve(t), serve(t)
		silent.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if stream > 1 || response.Grant != nil {
				return nil
			}
			return response
		}
		a := run(t, agent.Config{
			Targets: []string{"silent", "a"}, Dial: network{"silent": silent, "a": s}.dial, Holders: []agent.Holder{node("n1")},
		})
		advance(3*interval + interval/4)
		if got := a.Status(); got.Target != "a" || got.Registered != 1 {
			t.Errorf("status %+v, want registered at a", got)
		}
	})
}

func TestRun_MovesToTheNamedReplica(t *testing.T) {
	for name, leave := range map[string]func(*server){
		"MOVE": func(s *server) {
			s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				response.Directive, response.RedirectAddress = leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE, "owner"
				return response
			}
		},
		"NOT_LEADER": func(s *server) {
			s.end = func(int) error { return rpcerror.NotLeader("leasesvc", "owner") }
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, owner := serve(t), serve(t)
			leave(s)
			a := run(t, agent.Config{
				Targets: []string{"a", "a"}, Dial: network{"a": s, "owner": owner}.dial, Holders: []agent.Holder{node("n1")},
			})
			advance(interval)
			if got := a.Status(); got.Target != "owner" || got.Registered != 1 {
				t.Errorf("%s: status %+v, want registered at the owner", name, got)
			}
			if n := len(s.received()); n != 1 {
				t.Errorf("%s: %d messages to the wrong replica, want 1", name, n)
			}
		})
	}
}

func TestRun_BrokenStreamReconnectsWithinAQuarterOfTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(interval / 4)
		messages := s.received()
		if len(messages) != 2 || messages[1].Registered != 1 || messages[1].At == 0 {
			t.Errorf("messages %v, want a second registration after a pause", messages)
		}
	})
}

// The leases of a class may expire before the longest pause ends.
func TestRun_PausesAreShortForALeaseThatExpiresSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.intervals = map[string]time.Duration{"node": time.Second} // and a TTL of 4 s
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		var mu sync.Mutex
		absent := false
		a := run(t, agent.Config{Targets: []string{"a"}, Holders: []agent.Holder{node("n1")}, Dial: func(target string) (*grpc.ClientConn, error) {
			mu.Lock()
			defer mu.Unlock()
			if absent {
				return nil, errors.New("no such host")
			}
			absent = true
			return network{"a": s}.dial(target)
		}})
		advance(time.Minute) // so many connections fail
		mu.Lock()
		absent = false
		mu.Unlock()
		advance(time.Second)
		if got := a.Status(); got.Registered != 1 {
			t.Errorf("status %+v a quarter of the TTL after the server came back, want registered", got)
		}
	})
}

func TestRun_RejectedHandleRegistersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		rejected := false
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Grant != nil && !rejected {
				rejected = true
				response.RejectedHandles = []*leasev1.RejectedHandle{{Handle: 1, Rejection: &leasev1.Rejection{Reason: "LEASE_NOT_FOUND"}}}
			}
			return response
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}})
		advance(interval)
		expect(t, "messages", []message{{Registered: 2}, {At: interval, Beats: 2}, {At: interval, Registered: 1}}, s.received())
	})
}

// With the boot that has the name alive, the holder asks once in each pause that the server names.
// It beats again when the name is free.
func TestRun_SupersededHolderComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		superseded := &leasev1.Rejection{Reason: "SUPERSEDED", Code: code.Code_ABORTED, RetryAfter: durationpb.New(40 * time.Second)}
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if since := time.Since(s.begin); since < interval || since > 10*time.Minute {
				return response
			}
			if response.Grant != nil {
				response.Grant, response.RejectedHandles = nil, []*leasev1.RejectedHandle{{Handle: 1, Rejection: superseded}}
			}
			for _, result := range response.RegistrationResults {
				result.Handle, result.Result = 0, &leasev1.RegistrationResult_Rejection{Rejection: superseded}
			}
			return response
		}
		s.end = func(int) error {
			if since := time.Since(s.begin); since < interval || since > 10*time.Minute {
				return nil
			}
			return status.Error(codes.Aborted, "superseded")
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(10 * time.Minute)
		expect(t, "superseded", []agent.Holder{node("n1")}, a.Status().Superseded)
		asked := s.received()[2:]
		if len(asked) < 9 || len(asked) > 15 {
			t.Errorf("the holder asked %d times in ten minutes, want once in 40 s to 60 s", len(asked))
		}
		advance(2 * time.Minute)
		if got := a.Status(); got.Registered != 1 || got.Superseded != nil || got.Rejected != nil {
			t.Errorf("after the name was free: %+v, want it registered", got)
		}
	})
}

func TestRun_SupersededHolderStopsAndIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Grant != nil {
				response.RejectedHandles = []*leasev1.RejectedHandle{{Handle: 1, Rejection: &leasev1.Rejection{Reason: "SUPERSEDED"}}}
			}
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(6 * interval)
		expect(t, "messages", []message{{Registered: 1}, {At: interval, Beats: 1}}, s.received())
		expect(t, "superseded", []agent.Holder{node("n1")}, a.Status().Superseded)

		rebooted := node("n1")
		rebooted.BootID = "2"
		if err := a.Add(rebooted); err != nil {
			t.Fatal(err)
		}
		advance(interval / 4)
		if got := a.Status(); got.Registered != 1 || got.Superseded != nil {
			t.Errorf("after a reboot: %+v, want it registered", got)
		}
	})
}

func TestRun_RejectedHolderRegistersAgainWhenTheServerSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			for _, w := range response.RegistrationResults {
				if time.Since(s.begin) < 30*time.Second {
					w.Handle = 0
					w.Result = &leasev1.RegistrationResult_Rejection{Rejection: &leasev1.Rejection{Reason: "TOO_MANY_HOLDERS", RetryAfter: durationpb.New(20 * time.Second)}}
				}
			}
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(time.Second)
		expect(t, "rejected", []agent.Rejection{{Holder: node("n1"), Reason: "TOO_MANY_HOLDERS"}}, a.Status().Rejected)
		advance(49 * time.Second)
		expect(t, "messages", []message{
			{Registered: 1}, {At: 20 * time.Second, Registered: 1}, {At: 40 * time.Second, Registered: 1}, {At: 50 * time.Second, Beats: 1},
		}, s.received())
		expect(t, "rejected", []agent.Rejection(nil), a.Status().Rejected)
	})
}

// A new stream may lead to another replica, so a rejection ends with its stream.
func TestRun_RejectedHolderRegistersAgainOnANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if stream == 1 {
				response.RegistrationResults[0] = &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{
					Rejection: &leasev1.Rejection{Reason: "TOO_MANY_HOLDERS", RetryAfter: durationpb.New(time.Hour)},
				}}
			}
			return response
		}
		s.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(interval)
		if got := a.Status(); got.Registered != 1 || got.Streams != 2 {
			t.Errorf("status %+v, want it registered on the second stream", got)
		}
	})
}

// The requests and responses of a full stream exceed the buffers of gRPC in both directions.
func TestRun_FullStreamRegistersDespiteLongResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			for i, w := range response.RegistrationResults {
				if i%2 == 0 {
					w.Handle = 0
					w.Result = &leasev1.RegistrationResult_Rejection{Rejection: &leasev1.Rejection{Reason: "TOO_MANY_HOLDERS", Message: strings.Repeat("full ", 20)}}
				}
			}
			return response
		}
		var many []agent.Holder
		for i := range agent.MaxHolders {
			many = append(many, node(fmt.Sprintf("n%d.%s", i, strings.Repeat("x", 200))))
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: many})
		advance(time.Second)
		if got := a.Status(); got.Registered != agent.MaxHolders/2 || got.Streams != 1 {
			t.Errorf("%d registered on stream %d, want %d on the first", got.Registered, got.Streams, agent.MaxHolders/2)
		}
	})
}

func TestRun_DirectivesAreFollowed(t *testing.T) {
	for directive, want := range map[leasev1.StreamHeartbeatsResponse_Directive]struct {
		messages []message
		streams  int64
	}{
		leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN: {messages: []message{{Registered: 1}, {At: interval, Beats: 1}}, streams: 1},
		leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:    {messages: []message{{Registered: 1}, {At: interval, Beats: 1}, {At: interval, Registered: 1}}, streams: 1},
		leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH:    {messages: []message{{Registered: 1}, {At: interval, Beats: 1}, {Registered: 1}}, streams: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t)
			s.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				if response.Grant != nil && stream == 1 {
					response.Directive = directive
				}
				return response
			}
			a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
			advance(interval + interval/4)
			got := s.received()
			// Jitter decides when a new stream begins.
			if diff := cmp.Diff(want.messages, got, cmpopts.IgnoreFields(message{}, "At")); diff != "" || a.Status().Streams != want.streams {
				t.Errorf("%v: %d streams, messages (-want +got):\n%s", directive, a.Status().Streams, diff)
			}
		})
	}
}

func TestRun_InvalidResponsesEndTheStreamOnly(t *testing.T) {
	for name, spoil := range map[string]func(*leasev1.StreamHeartbeatsResponse){
		"wrong sequence": func(a *leasev1.StreamHeartbeatsResponse) { a.Sequence += 5 },
		"too many results": func(a *leasev1.StreamHeartbeatsResponse) {
			a.RegistrationResults = append(a.RegistrationResults, a.RegistrationResults...)
		},
		"no result":    func(a *leasev1.StreamHeartbeatsResponse) { a.RegistrationResults = nil },
		"empty result": func(a *leasev1.StreamHeartbeatsResponse) { a.RegistrationResults[0] = &leasev1.RegistrationResult{} },
		"negative interval": func(a *leasev1.StreamHeartbeatsResponse) {
			a.RegistrationResults[0].GetGrant().NextInterval = durationpb.New(-time.Hour)
		},
		"no interval": func(a *leasev1.StreamHeartbeatsResponse) { a.RegistrationResults[0].GetGrant().NextInterval = nil },
		"unknown handle rejected": func(a *leasev1.StreamHeartbeatsResponse) {
			a.RejectedHandles = []*leasev1.RejectedHandle{{Handle: 99}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t)
			s.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				if stream == 1 && len(response.RegistrationResults) > 0 {
					spoil(response)
				}
				return response
			}
			a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
			advance(2 * time.Minute)
			if got := a.Status(); got.Registered != 1 {
				t.Errorf("%s: status %+v, want it registered at last", name, got)
			}
			if n := len(s.received()); n > 20 {
				t.Errorf("%s: %d messages in two minutes", name, n)
			}
		})
	}
}

// An outage is told when it begins, and then once a minute; a new one after an answer at once.
func TestRun_AnOutageIsALineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := serve(t)
		var reachable atomic.Pointer[server]
		a := run(t, agent.Config{
			Targets: []string{"a"}, Holders: []agent.Holder{node("n1")}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Dial: func(target string) (*grpc.ClientConn, error) { return network{"a": reachable.Load()}.dial(target) },
		})
		const line = "no answer to heartbeats"
		advance(150 * time.Second)
		if got := strings.Count(log.String(), line); got != 3 {
			t.Errorf("%d lines in 150 s, want 3:\n%s", got, log.String())
		}
		reachable.Store(s)
		advance(10 * time.Second)
		if !a.Status().Connected {
			t.Fatal("the agent does not come back")
		}
		reachable.Store(nil)
		log.Reset()
		s.disconnect(t)
		advance(30 * time.Second)
		if got := strings.Count(log.String(), line); got != 1 || !strings.Contains(log.String(), "heartbeat stream ended") {
			t.Errorf("a new outage:\n%s", log.String())
		}
	})
}

func TestNew_NamesEveryProblem(t *testing.T) {
	_, err := agent.New(agent.Config{Holders: []agent.Holder{{Class: "node"}}, MinBackoff: time.Minute})
	for _, want := range []string{"no targets", "no Dial", "name:", "boot id:", "backoff 1m0s to 5s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	renew := func(context.Context, agent.Holder) error { return nil }
	_, err = agent.New(agent.Config{Targets: []string{"a"}, Dial: network{}.dial, Unacknowledged: renew, Mode: "probe", BeatOnReport: true})
	for _, want := range []string{"Unacknowledged and BeatOnReport exclude each other", `Unacknowledged and mode "probe" exclude each other`} {
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
