package leader

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
)

const (
	// maxRedirects is how often one question follows NOT_LEADER: once to the leader, and once more
	// if the shard has just moved.
	maxRedirects = 2
	// maxLeaders bounds the memory of leaders. A full memory is emptied: one call finds a leader
	// again.
	maxLeaders = 4096
	// callsPerQuestion bounds a question, in timeouts of one call.
	callsPerQuestion = 3
	// pause is the time before a write is repeated at the same replica, and before a question is
	// asked again while the leader changes.
	pause = 100 * time.Millisecond
	// avoidTime is for how long a replica that timed out is asked after the other ones.
	avoidTime = 5 * time.Second
)

// LoopDisabledReason means that a replica does not do the work, whether or not it leads the shard.
const LoopDisabledReason rpcerror.Reason = "LOOP_DISABLED"

// Router finds leaders. It is safe for concurrent use.
type Router struct {
	members     func() []term.Member
	connections *fanout.Pool
	timeout     time.Duration
	patience    time.Duration
	leaders     *leaders
}

// leaders remembers which replica answered last, and which timed out.
type leaders struct {
	mu       sync.Mutex           // guards the fields below
	byKey    map[string]string    // replica id by the key of a question
	timedOut map[string]time.Time // when a replica timed out, by id
}

// New returns a Router for the replicas that members returns. connections must not retry, because
// NOT_LEADER is an answer. timeout bounds each call.
func New(members func() []term.Member, connections *fanout.Pool, timeout time.Duration) *Router {
	return &Router{members: members, connections: connections, timeout: timeout, leaders: &leaders{byKey: map[string]string{}, timedOut: map[string]time.Time{}}}
}

// WithTimeout returns a Router with another timeout and the same memory of leaders.
func (r *Router) WithTimeout(timeout time.Duration) *Router {
	other := *r
	other.timeout = timeout
	return &other
}

// WithPatience returns a Router with the same memory of leaders, whose Ask waits for a change of
// the leader for up to a time.
func (r *Router) WithPatience(patience time.Duration) *Router {
	other := *r
	other.patience = patience
	return &other
}

// UnreachableError means that the leader could not be asked.
type UnreachableError struct {
	// Failures are the replicas that did not answer, in the order in which they were asked.
	Failures []fanout.Failure
	// OthersAnswered is whether other replicas answered that they do not lead the shard.
	OthersAnswered bool
	// Lost is whether the last replica received a question that writes, and its answer did not
	// arrive.
	Lost bool
}

func (e UnreachableError) Error() string {
	switch {
	case e.Lost:
		return "the answer was lost and it is not known whether the request was carried out, so repeat it with the same request_id"
	case e.OthersAnswered:
		return "the replica that owns the answer cannot be reached"
	}
	return "no replica answered"
}

// Ask asks the leader of a key. The error is what the leader answered, with its ErrorInfo; what
// another replica answered, if there is no leader; or UnreachableError. While some replica answers
// and the leader changes, stops, or has not read its cache, the question is asked again; see
// WithPatience.
func Ask[Answer any](ctx context.Context, r *Router, key string, call fanout.Call[Answer]) (Answer, error) {
	for begin := time.Now(); ; {
		search := r.search(key)
		answer, by, err := run(ctx, r, search, search.isAnswer, call)
		if err == nil {
			r.leaders.set(key, by.ID)
		}
		if err == nil || !search.leaderChanges() || time.Since(begin)+pause > r.patience {
			return answer, err
		}
		backoff.Sleep(ctx, pause)
		if ctx.Err() != nil {
			return answer, err
		}
	}
}

// Write asks the leader of a key to write, as Ask. The call returns fanout.LostError when the
// replica received it and the answer was lost. It is then repeated once, at the same replica, and
// at no other one. repeatable is whether the replica knows a repeated request.
func Write[Answer any](ctx context.Context, r *Router, key string, repeatable bool, call fanout.Call[Answer]) (Answer, error) {
	search := r.search(key)
	search.writes, search.repeatable = true, repeatable
	answer, by, err := run(ctx, r, search, search.isAnswer, call)
	if err == nil {
		r.leaders.set(key, by.ID)
	}
	return answer, err
}

// AskAny asks any replica, the last known leader of the key first, because its state is the newest.
// A replica that is unavailable is skipped. The error is the answer of one that was not, or
// UnreachableError.
func AskAny[Answer any](ctx context.Context, r *Router, key string, call fanout.Call[Answer]) (Answer, error) {
	search := r.search(key)
	answer, _, err := run(ctx, r, search, search.isAnyAnswer, call)
	return answer, err
}

// run asks one replica after the other, until one answers or its error is an answer.
func run[Answer any](ctx context.Context, r *Router, search *search, isAnswer func(term.Member, error, time.Duration) bool,
	call fanout.Call[Answer],
) (Answer, term.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, callsPerQuestion*r.timeout)
	defer cancel()
	var none Answer
	for member, ok := search.next(); ok; member, ok = search.next() {
		started := time.Now()
		answer, err := askOne(ctx, r, member, call)
		if ctx.Err() == nil { // otherwise the caller had no time, or left
			r.leaders.heard(member.ID, err)
		}
		if err == nil || isAnswer(member, err, time.Since(started)) {
			return answer, member, err
		}
		if search.repeats {
			backoff.Sleep(ctx, pause)
		}
		if ctx.Err() != nil || search.lost {
			break
		}
	}
	return none, term.Member{}, search.failure()
}

func askOne[Answer any](ctx context.Context, r *Router, member term.Member, call fanout.Call[Answer]) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return fanout.CallMember(ctx, r.connections, member, call)
}

func (h *leaders) set(key, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.byKey) >= maxLeaders {
		clear(h.byKey)
	}
	h.byKey[key] = id
}

// heard takes the result of a call to a replica.
func (h *leaders) heard(id string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if status.Code(err) != codes.DeadlineExceeded {
		delete(h.timedOut, id)
		return
	}
	if len(h.timedOut) >= maxLeaders {
		clear(h.timedOut)
	}
	h.timedOut[id] = time.Now()
}

// avoids reports whether a replica has just timed out.
func (h *leaders) avoids(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, known := h.timedOut[id]
	return known && time.Since(at) < avoidTime
}

func (h *leaders) get(key string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byKey[key]
}

// search is the state of one question.
type search struct {
	members   []term.Member
	queue     []term.Member // the replicas to ask, in order
	redirects int
	// unreached are the replicas that did not answer; rejection is the best error of one that did.
	unreached []fanout.Failure
	rejection error
	// answered is whether the last error was an answer for the caller.
	answered bool
	// writes is whether the question writes. repeats is whether its answer was lost and the same
	// replica is asked again; lost is whether that is over.
	writes, repeatable, repeats, lost bool
}

// search orders the replicas: the last known leader comes first, those that have just timed out
// come last.
func (r *Router) search(key string) *search {
	members := slices.Clone(r.members())
	last := r.leaders.get(key)
	if i := slices.IndexFunc(members, func(m term.Member) bool { return m.ID == last }); i > 0 {
		members[0], members[i] = members[i], members[0]
	}
	slices.SortStableFunc(members, func(a, b term.Member) int {
		switch avoidA, avoidB := r.leaders.avoids(a.ID), r.leaders.avoids(b.ID); {
		case avoidA == avoidB:
			return 0
		case avoidA:
			return 1
		default:
			return -1
		}
	})
	return &search{members: members, queue: slices.Clone(members)}
}

func (s *search) next() (term.Member, bool) {
	if len(s.queue) == 0 {
		return term.Member{}, false
	}
	member := s.queue[0]
	s.queue = s.queue[1:]
	return member, true
}

// isAnswer is isFinal, and remembers it.
func (s *search) isAnswer(member term.Member, err error, after time.Duration) bool {
	s.answered = s.isFinal(member, err, after)
	return s.answered
}

// leaderChanges reports whether a question failed as it does during a change of the leader: some
// replica answered that it is not the leader, stops, or has not read its cache, and none was silent
// for a whole timeout.
func (s *search) leaderChanges() bool {
	silent := func(f fanout.Failure) bool { return status.Code(f.Err) != codes.Unavailable }
	switch rpcerror.ReasonOf(s.rejection) {
	case rpcerror.NotLeaderReason, rpcerror.NoLeaderReason, rpcerror.ShuttingDownReason, rpcerror.CacheNotSyncedReason:
		return !s.answered && !slices.ContainsFunc(s.unreached, silent)
	}
	return false
}

// isFinal reports whether an error is the answer to a question for the leader, and prepares the
// next call if it is not. Each reason that makes it ask another replica says that nothing was done;
// a replica that stops may have begun to write.
func (s *search) isFinal(member term.Member, err error, after time.Duration) bool {
	if s.isUnreached(member, err, after) {
		return false
	}
	before := s.rejection
	switch rpcerror.ReasonOf(err) {
	case rpcerror.NotLeaderReason, rpcerror.NoLeaderReason:
		s.redirect(rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey))
		if s.rejection == nil {
			s.rejection = err
		}
	case rpcerror.ShuttingDownReason:
		if s.writes {
			return true
		}
		s.rejection = err
	case rpcerror.UnknownMethodReason, LoopDisabledReason, rpcerror.CacheNotSyncedReason:
		s.rejection = err // another replica may be able to tell
	default:
		return true
	}
	if s.repeats { // the replica forgot the request, which it may have carried out
		s.repeats, s.lost, s.rejection = false, true, before
	}
	return false
}

// isAnyAnswer reports whether an error is the answer to a question for any replica.
func (s *search) isAnyAnswer(member term.Member, err error, after time.Duration) bool {
	if s.isUnreached(member, err, after) {
		return false
	}
	if status.Code(err) != codes.Unavailable && rpcerror.ReasonOf(err) != rpcerror.UnknownMethodReason {
		return true
	}
	if s.rejection == nil {
		s.rejection = err // another replica may reach its kube-apiserver, for example
	}
	return false
}

// isUnreached records a replica that did not answer in time, or not at all.
func (s *search) isUnreached(member term.Member, err error, after time.Duration) bool {
	if rpcerror.ReasonOf(err) != "" && status.Code(err) != codes.DeadlineExceeded {
		return false
	}
	s.unreached = append(s.unreached, fanout.Failure{Member: member, Err: err, After: after})
	if s.writes {
		s.lose(member, err)
	}
	return true
}

// lose decides what follows when a call that writes got no answer. A call that never reached the
// replica is asked elsewhere, unless an earlier one did.
func (s *search) lose(member term.Member, err error) {
	var lost fanout.LostError
	// A deadline with a reason passed in the replica.
	switch arrived := errors.As(err, &lost) || rpcerror.ReasonOf(err) != ""; {
	case s.repeats:
		s.repeats, s.lost = false, true
	case arrived && s.repeatable && status.Code(err) == codes.Unavailable:
		s.repeats = true
		s.queue = slices.Insert(s.queue, 0, member)
	case arrived:
		s.lost = true
	}
}

// redirect asks the replica at an address next, even if it was asked before, unless it did not
// answer.
func (s *search) redirect(address string) {
	i := slices.IndexFunc(s.members, func(m term.Member) bool { return m.GRPCAddress == address && address != "" })
	if i < 0 || s.redirects == maxRedirects {
		return
	}
	if slices.ContainsFunc(s.unreached, func(f fanout.Failure) bool { return f.Member.ID == s.members[i].ID }) {
		return
	}
	s.redirects++
	leader := s.members[i]
	s.queue = slices.DeleteFunc(s.queue, func(m term.Member) bool { return m.ID == leader.ID })
	s.queue = slices.Insert(s.queue, 0, leader)
}

// failure is the error of a question without an answer. NOT_LEADER does not help if the leader is
// among the replicas that did not answer.
func (s *search) failure() error {
	reason := rpcerror.ReasonOf(s.rejection)
	isRedirect := reason == rpcerror.NotLeaderReason || reason == rpcerror.NoLeaderReason
	if s.rejection == nil || s.lost || len(s.unreached) > 0 && isRedirect {
		return UnreachableError{Failures: s.unreached, OthersAnswered: s.rejection != nil, Lost: s.lost}
	}
	return s.rejection
}
