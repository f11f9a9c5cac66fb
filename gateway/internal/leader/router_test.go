package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
)

// service is a service whose replicas answer by a table, by address; nil is OK.
type service struct {
	t       *testing.T
	members []term.Member
	answers map[string]error
	asked   []string
}

func newService(t *testing.T, answers map[string]error, ids ...string) *service {
	t.Helper()
	s := &service{t: t, answers: answers}
	for _, id := range ids {
		s.members = append(s.members, term.Member{ID: id, Service: "leasesvc", GRPCAddress: id + ":1"})
	}
	return s
}

func (s *service) router() *leader.Router {
	pool := fanout.NewPool(func(member term.Member) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+member.GRPCAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	})
	s.t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			s.t.Errorf("close the connections: %v", err)
		}
	})
	return leader.New(func() []term.Member { return s.members }, pool, time.Second)
}

// ask asks for a key and returns the address that answered.
func (s *service) ask(ctx context.Context, r *leader.Router) (string, error) {
	s.asked = nil
	return leader.Ask(ctx, r, "nodes/n1", s.answer)
}

// answer is one call.
func (s *service) answer(ctx context.Context, conn grpc.ClientConnInterface, _ term.Member) (string, error) {
	address := conn.(*grpc.ClientConn).CanonicalTarget()[len("passthrough:///"):]
	s.asked = append(s.asked, address)
	err := s.answers[address]
	if errors.Is(err, errHangs) {
		<-ctx.Done()
		return "", status.FromContextError(ctx.Err()).Err()
	}
	return address, err
}

var (
	errHangs    = errors.New("hangs")
	errDown     = status.Error(codes.Unavailable, "connection refused")
	errDisabled = rpcerror.New(codes.FailedPrecondition, "LOOP_DISABLED", "off")
	errNotFound = rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", "no such node")
)

func notLeader(address string) error { return rpcerror.NotLeader("leasesvc", address) }

func TestAsk_Order(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]error
		asked   []string
		reason  rpcerror.Reason // of the error; "" when there is an answer
	}{
		"the first answers":             {answers: map[string]error{}, asked: []string{"a:1"}},
		"the first redirects":           {answers: map[string]error{"a:1": notLeader("c:1")}, asked: []string{"a:1", "c:1"}},
		"the shard has moved":           {answers: map[string]error{"a:1": notLeader("c:1"), "c:1": notLeader("b:1")}, asked: []string{"a:1", "c:1", "b:1"}},
		"no leader":                     {answers: map[string]error{"a:1": notLeader(""), "b:1": notLeader(""), "c:1": notLeader("")}, asked: []string{"a:1", "b:1", "c:1"}, reason: "NO_LEADER"},
		"each redirects to the other":   {answers: map[string]error{"a:1": notLeader("b:1"), "b:1": notLeader("a:1"), "c:1": notLeader("a:1")}, asked: []string{"a:1", "b:1", "a:1", "c:1"}, reason: "NOT_LEADER"},
		"unregistered address":          {answers: map[string]error{"a:1": notLeader("evil:1"), "b:1": notLeader("evil:1"), "c:1": notLeader("evil:1")}, asked: []string{"a:1", "b:1", "c:1"}, reason: "NOT_LEADER"},
		"the leader has an error":       {answers: map[string]error{"a:1": notLeader("b:1"), "b:1": errNotFound}, asked: []string{"a:1", "b:1"}, reason: "NODE_NOT_FOUND"},
		"the first is down":             {answers: map[string]error{"a:1": errDown}, asked: []string{"a:1", "b:1"}},
		"the loop is off at the first":  {answers: map[string]error{"a:1": errDisabled, "b:1": notLeader("c:1")}, asked: []string{"a:1", "b:1", "c:1"}},
		"the loop is off everywhere":    {answers: map[string]error{"a:1": errDisabled, "b:1": errDown, "c:1": errDisabled}, asked: []string{"a:1", "b:1", "c:1"}, reason: "LOOP_DISABLED"},
		"the loop is off at the leader": {answers: map[string]error{"a:1": notLeader("b:1"), "b:1": errDisabled, "c:1": notLeader("b:1")}, asked: []string{"a:1", "b:1", "c:1", "b:1"}, reason: "LOOP_DISABLED"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, c.answers, "a", "b", "c")

			_, err := s.ask(t.Context(), s.router())

			if got := rpcerror.ReasonOf(err); got != c.reason || (err == nil) != (c.reason == "") {
				t.Errorf("Ask() = %v, want reason %q", err, c.reason)
			}
			if diff := cmp.Diff(c.asked, s.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAsk_UnreachableHolderIsNamed(t *testing.T) {
	s := newService(t, map[string]error{"a:1": notLeader("b:1"), "b:1": errDown, "c:1": notLeader("b:1")}, "a", "b", "c")

	_, err := s.ask(t.Context(), s.router())

	var unreachable leader.UnreachableError
	if !errors.As(err, &unreachable) || len(unreachable.Failures) == 0 || unreachable.Failures[0].Member.ID != "b" || status.Code(unreachable.Failures[0].Err) != codes.Unavailable || !unreachable.OthersAnswered {
		t.Errorf("Ask() = %v with %v, want the leader b as unreachable, and that others answered", err, unreachable.Failures)
	}
}

func TestAsk_LastHolderIsAskedFirst(t *testing.T) {
	s := newService(t, map[string]error{"a:1": notLeader("c:1")}, "a", "b", "c")
	r := s.router()
	for _, want := range [][]string{{"a:1", "c:1"}, {"c:1"}} {
		if _, err := s.ask(t.Context(), r); err != nil {
			t.Fatalf("Ask() = %v", err)
		}
		if diff := cmp.Diff(want, s.asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
	}
}

func (s *service) any(ctx context.Context, r *leader.Router) (string, error) {
	s.asked = nil
	return leader.AskAny(ctx, r, "nodes/n1", s.answer)
}

var (
	errDisconnected = rpcerror.New(codes.Unavailable, "APISERVER_UNREACHABLE", "it did not answer in time")
	errStopping     = rpcerror.ShuttingDown()
	errOlder        = rpcerror.New(codes.Unimplemented, rpcerror.UnknownMethodReason, "no such method")
)

func TestAskAny_Order(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]error
		asked   []string
		reason  rpcerror.Reason // of the error; "" when there is an answer
	}{
		"the first":                 {answers: map[string]error{}, asked: []string{"a:1"}},
		"the first is down":         {answers: map[string]error{"a:1": errDown}, asked: []string{"a:1", "b:1"}},
		"the first is disconnected": {answers: map[string]error{"a:1": errDisconnected, "b:1": errStopping}, asked: []string{"a:1", "b:1", "c:1"}},
		"the first is older":        {answers: map[string]error{"a:1": errOlder}, asked: []string{"a:1", "b:1"}},
		"all are disconnected":      {answers: map[string]error{"a:1": errDisconnected, "b:1": errDown, "c:1": errStopping}, asked: []string{"a:1", "b:1", "c:1"}, reason: "APISERVER_UNREACHABLE"},
		"the object does not exist": {answers: map[string]error{"a:1": errNotFound}, asked: []string{"a:1"}, reason: "NODE_NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, c.answers, "a", "b", "c")

			_, err := s.any(t.Context(), s.router())

			if got := rpcerror.ReasonOf(err); got != c.reason || (err == nil) != (c.reason == "") {
				t.Errorf("Any() = %v, want reason %q", err, c.reason)
			}
			if diff := cmp.Diff(c.asked, s.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAskAny_NoReplicaCanBeReached(t *testing.T) {
	s := newService(t, map[string]error{"a:1": errDown, "b:1": errDown}, "a", "b")

	_, err := s.any(t.Context(), s.router())

	var unreachable leader.UnreachableError
	if !errors.As(err, &unreachable) || len(unreachable.Failures) != 2 || unreachable.OthersAnswered {
		t.Errorf("Any() = %v, want both as unreachable", err)
	}
}

// A replica that answers for any replica does not become the known leader.
func TestAskAny_AsksTheKnownHolderFirst(t *testing.T) {
	s := newService(t, map[string]error{"a:1": notLeader("c:1"), "b:1": notLeader("c:1")}, "a", "b", "c")
	r := s.router()
	if _, err := s.ask(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	slow := r.WithTimeout(time.Minute)
	s.answers = map[string]error{"c:1": errDisconnected}
	for _, want := range []map[string]error{{"c:1": errDisconnected}, {}} {
		s.answers = want
		if _, err := s.any(t.Context(), slow); err != nil || s.asked[0] != "c:1" {
			t.Errorf("asked %v (%v), want the leader c first", s.asked, err)
		}
	}
}

// writing asks a question that writes. The replica knows repeated requests.
func (s *service) writing(ctx context.Context, r *leader.Router) (string, error) {
	s.asked = nil
	return leader.Write(ctx, r, "nodes/n1", true, s.answer)
}

func TestWrite_IsRepeatedOnlyWhereItIsSafe(t *testing.T) {
	lost := fanout.LostError{Err: status.Error(codes.Unavailable, "connection reset")}
	late := fanout.LostError{Err: status.Error(codes.DeadlineExceeded, "too late")}
	for name, c := range map[string]struct {
		answers map[string]error
		asked   []string
		lost    bool
		reason  rpcerror.Reason // of the error; "" when there is an answer, or none is known
	}{
		"the first leads":                    {asked: []string{"a:1"}},
		"the first redirects":                {answers: map[string]error{"a:1": notLeader("c:1")}, asked: []string{"a:1", "c:1"}},
		"the first cannot be connected":      {answers: map[string]error{"a:1": errDown}, asked: []string{"a:1", "b:1"}},
		"the answer was lost twice":          {answers: map[string]error{"a:1": lost}, asked: []string{"a:1", "a:1"}, lost: true},
		"the answer came too late":           {answers: map[string]error{"a:1": late}, asked: []string{"a:1"}, lost: true},
		"lost after a redirect":              {answers: map[string]error{"a:1": notLeader("b:1"), "b:1": lost}, asked: []string{"a:1", "b:1", "b:1"}, lost: true},
		"the first stops, maybe in mid-work": {answers: map[string]error{"a:1": errStopping}, asked: []string{"a:1"}, reason: "SHUTTING_DOWN"},
		"the first has an error":             {answers: map[string]error{"a:1": errNotFound}, asked: []string{"a:1"}, reason: "NODE_NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, c.answers, "a", "b", "c")
			_, err := s.writing(t.Context(), s.router())
			var unreachable leader.UnreachableError
			if isLost := errors.As(err, &unreachable) && unreachable.Lost; isLost != c.lost || rpcerror.ReasonOf(err) != c.reason || (err == nil) != (c.reason == "" && !c.lost) {
				t.Errorf("Write() = %v, lost %v; want reason %q, lost %v", err, isLost, c.reason, c.lost)
			}
			if diff := cmp.Diff(c.asked, s.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrite_SecondAnswerCounts(t *testing.T) {
	for name, c := range map[string]struct {
		second error
		lost   bool
	}{
		"it knows the request":        {},
		"it does not lead any more":   {second: notLeader("b:1"), lost: true},
		"it cannot be connected":      {second: errDown, lost: true},
		"it has an error of the work": {second: errNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil, "a", "b")
			calls := 0
			_, err := leader.Write(t.Context(), s.router(), "nodes/n1", true, func(context.Context, grpc.ClientConnInterface, term.Member) (string, error) {
				if calls++; calls == 1 {
					return "", fanout.LostError{Err: status.Error(codes.Unavailable, "connection reset")}
				}
				return "done", c.second
			})
			var unreachable leader.UnreachableError
			isLost := errors.As(err, &unreachable) && unreachable.Lost
			if isLost != c.lost || !c.lost && !errors.Is(err, c.second) || calls != 2 {
				t.Errorf("Write() = %v after %d calls, lost %v; want %v, lost %v", err, calls, isLost, c.second, c.lost)
			}
		})
	}
}

func TestWrite_IsNotRepeatedIfTheReplicaCannotKnowIt(t *testing.T) {
	s := newService(t, nil, "a", "b")
	calls := 0
	_, err := leader.Write(t.Context(), s.router(), "nodes/n1", false, func(context.Context, grpc.ClientConnInterface, term.Member) (string, error) {
		calls++
		return "", fanout.LostError{Err: status.Error(codes.Unavailable, "connection reset")}
	})
	if err == nil || calls != 1 {
		t.Errorf("Write() = %v after %d calls, want an error after one", err, calls)
	}
}

// A rolling update moves the leader. The question waits for the next one, and for its cache.
func TestWithPatience_AskWaitsForAChangeOfTheLeader(t *testing.T) {
	notSynced := rpcerror.New(codes.Unavailable, rpcerror.CacheNotSyncedReason, "not read yet")
	for name, c := range map[string]struct {
		first, then map[string]error // the second ones after a second
		takes       time.Duration
		fails       bool
	}{
		"the leader stops":                   {first: map[string]error{"a:1": rpcerror.New(codes.Unavailable, rpcerror.ShuttingDownReason, "stops"), "b:1": notLeader("a:1")}, takes: time.Second},
		"the leader is replaced":             {first: map[string]error{"a:1": errDown, "b:1": notLeader("a:1")}, takes: time.Second},
		"no leader":                          {first: map[string]error{"a:1": notLeader(""), "b:1": notLeader("")}, takes: time.Second},
		"the leader has not read its cache":  {first: map[string]error{"a:1": notLeader("b:1"), "b:1": notSynced}, takes: time.Second},
		"no leader for long":                 {first: map[string]error{"a:1": notLeader(""), "b:1": notLeader("")}, then: map[string]error{"a:1": notLeader(""), "b:1": notLeader("")}, takes: 2 * time.Second, fails: true},
		"no replica runs":                    {first: map[string]error{"a:1": errDown, "b:1": errDown}, fails: true},
		"a replica is silent":                {first: map[string]error{"a:1": errHangs, "b:1": notLeader("a:1")}, then: map[string]error{"a:1": errHangs, "b:1": notLeader("a:1")}, takes: time.Second, fails: true},
		"the leader answers with an error":   {first: map[string]error{"a:1": notLeader("b:1"), "b:1": errNotFound}, fails: true},
		"all replicas answer that it is off": {first: map[string]error{"a:1": errDisabled, "b:1": errDisabled}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, c.first, "a", "b")
				started := time.Now()
				r := s.router().WithPatience(2 * time.Second)
				_, err := leader.Ask(t.Context(), r, "nodes/n1", func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (string, error) {
					if time.Since(started) >= time.Second {
						s.answers = c.then
					}
					return s.answer(ctx, conn, member)
				})
				if took := time.Since(started); (err != nil) != c.fails || took < c.takes-pause || took > c.takes {
					t.Errorf("Ask() = %v after %v, want an error: %v, after %v", err, took, c.fails, c.takes)
				}
			})
		})
	}
}

// pause is the time between two searches.
const pause = 100 * time.Millisecond

func TestWithTimeout_SharesTheHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, map[string]error{"a:1": notLeader("b:1"), "b:1": errHangs}, "a", "b")
		started := time.Now()
		if _, err := s.ask(t.Context(), s.router().WithTimeout(10*time.Second)); err == nil || time.Since(started) < 10*time.Second {
			t.Errorf("Ask() = %v after %s, want an error after ten seconds at least", err, time.Since(started))
		}
		s.answers["b:1"] = nil
		r := s.router()
		if _, err := s.ask(t.Context(), r.WithTimeout(10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.ask(t.Context(), r); err != nil || s.asked[0] != "b:1" {
			t.Errorf("asked %v (%v), want b, which the other router has found", s.asked, err)
		}
	})
}

func TestAsk_HangingReplicasTakeABoundedTime(t *testing.T) {
	answers := map[string]error{"a:1": errHangs, "b:1": errHangs, "c:1": errHangs, "d:1": errHangs}
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, answers, "a", "b", "c", "d")
		started := time.Now()

		_, err := s.ask(t.Context(), s.router())

		if took := time.Since(started); took != 3*time.Second {
			t.Errorf("took %s, want three times the timeout", took)
		}
		var unreachable leader.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.Failures[0].Part().Message != "no answer within 1s" || unreachable.OthersAnswered {
			t.Errorf("Ask() = %v with %v, want the hanging replicas as unreachable", err, unreachable.Failures)
		}
	})
}

// A leader that hangs is asked once and named once, although the other replicas redirect to it. The
// next question asks it last.
func TestAsk_ReplicaThatTimedOutIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, map[string]error{"a:1": errHangs, "b:1": notLeader("a:1"), "c:1": notLeader("a:1")}, "a", "b", "c")
		r := s.router()

		started := time.Now()
		_, err := s.ask(t.Context(), r)

		var unreachable leader.UnreachableError
		if !errors.As(err, &unreachable) || len(unreachable.Failures) != 1 || unreachable.Failures[0].Member.ID != "a" {
			t.Errorf("Ask() = %v with %v, want a named once", err, unreachable.Failures)
		}
		if took := time.Since(started); took != time.Second {
			t.Errorf("Ask() took %v, want the timeout of one call", took)
		}
		if diff := cmp.Diff([]string{"a:1", "b:1", "c:1"}, s.asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}

		s.answers = map[string]error{"a:1": errHangs}
		if _, err := s.ask(t.Context(), r); err != nil || len(s.asked) != 1 || s.asked[0] != "b:1" {
			t.Errorf("the next question asked %v (%v), want b only", s.asked, err)
		}
		time.Sleep(time.Minute)
		s.answers = map[string]error{"b:1": notLeader("a:1")}
		if _, err := s.ask(t.Context(), r); err != nil {
			t.Errorf("Ask() = %v after a has recovered", err)
		}
	})
}
