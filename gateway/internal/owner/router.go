package owner

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// maxHops is how often one question follows NOT_LEADER: once to the owner, once more when the shard has just moved.
	maxHops = 2
	// maxKnown bounds what is remembered of who owns what. When it is full all is forgotten: an owner is found again by one call.
	maxKnown = 4096
)

// Config is what a Router needs. All of it is required.
type Config struct {
	// Members returns the replicas of the service.
	Members func() []term.Member
	// Connections has the connections, which do not retry: NOT_LEADER is an answer.
	Connections *fanout.Pool
	// Timeout bounds each call. Three times as long bounds a question.
	Timeout time.Duration
}

// Router finds owners. It is safe for concurrent use.
type Router struct {
	cfg Config

	mu    sync.Mutex        // guards known
	known map[string]string // id of the replica that answered last, by the name of what it was asked about
}

// New returns a Router that knows nothing yet. It contacts nobody.
func New(cfg Config) *Router { return &Router{cfg: cfg, known: map[string]string{}} }

// UnreachableError says that the owner could not be asked.
type UnreachableError struct {
	// Failures are those of the replicas that were asked in vain, in that order.
	Failures []*gatewayv1.SourceStatus
	// Disowned is whether others said that the answer is not theirs; else not one replica answered.
	Disowned bool
}

func (e UnreachableError) Error() string {
	if e.Disowned {
		return "the replica that owns the answer cannot be reached"
	}
	return "no replica answered"
}

// Ask asks for what name names. The error is what the owner said, with its ErrorInfo; what another replica said for want of an
// owner; or UnreachableError.
func Ask[Answer any](ctx context.Context, r *Router, name string, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*r.cfg.Timeout)
	defer cancel()
	search := r.begin(name)
	var none Answer
	for member, ok := search.next(); ok; member, ok = search.next() {
		started := time.Now()
		answer, err := ask(ctx, r, member, call)
		if err == nil {
			r.learn(name, member.ID)
			return answer, nil
		}
		if search.take(member, err, time.Since(started)) {
			return none, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return none, search.failure()
}

func ask[Answer any](ctx context.Context, r *Router, member term.Member, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	conn, err := r.cfg.Connections.Connection(member)
	if err != nil {
		var none Answer
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	return call(ctx, conn)
}

func (r *Router) learn(name, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxKnown {
		clear(r.known)
	}
	r.known[name] = id
}

// begin lines the replicas up: who answered last comes first.
func (r *Router) begin(name string) *search {
	members := slices.Clone(r.cfg.Members())
	r.mu.Lock()
	last := r.known[name]
	r.mu.Unlock()
	if i := slices.IndexFunc(members, func(m term.Member) bool { return m.ID == last }); i > 0 {
		members[0], members[i] = members[i], members[0]
	}
	return &search{members: members, queue: slices.Clone(members)}
}

// search is one question on its way.
type search struct {
	members []term.Member
	queue   []term.Member // whom to ask, in this order
	hops    int
	// unreached and told are how it went so far: who could not be asked, and what the last one said who could.
	unreached []*gatewayv1.SourceStatus
	told      error
}

func (s *search) next() (term.Member, bool) {
	if len(s.queue) == 0 {
		return term.Member{}, false
	}
	member := s.queue[0]
	s.queue = s.queue[1:]
	return member, true
}

// take takes an error and says whether it is the answer.
func (s *search) take(member term.Member, err error, after time.Duration) (answers bool) {
	reason := rpcerror.ReasonOf(err)
	if reason == "" || status.Code(err) == codes.DeadlineExceeded { // nobody there, or no answer in time
		s.unreached = append(s.unreached, fanout.Failure(member, err, after))
		return false
	}
	switch reason {
	case rpcerror.NotLeaderReason:
		s.follow(rpcerror.MetadataOf(err, rpcerror.GRPCAddressKey))
		if s.told == nil {
			s.told = err
		}
	case rpcerror.ShuttingDownReason, rpcerror.UnknownMethodReason, loopDisabledReason, cacheNotSyncedReason:
		s.told = err // another one may know better
	default:
		return true
	}
	return false
}

// Reasons with which a replica says that it cannot tell, whether or not it owns the answer.
const (
	loopDisabledReason   rpcerror.Reason = "LOOP_DISABLED"
	cacheNotSyncedReason rpcerror.Reason = "CACHE_NOT_SYNCED"
)

// follow asks the replica at an address next, also if it was asked before.
func (s *search) follow(address string) {
	i := slices.IndexFunc(s.members, func(m term.Member) bool { return m.GRPCAddress == address && address != "" })
	if i < 0 || s.hops == maxHops {
		return
	}
	s.hops++
	owner := s.members[i]
	s.queue = slices.DeleteFunc(s.queue, func(m term.Member) bool { return m.ID == owner.ID })
	s.queue = slices.Insert(s.queue, 0, owner)
}

// failure is what to say when nobody had the answer. Where the owner was named and not reached, what the others said is no help.
func (s *search) failure() error {
	unreachable := UnreachableError{Failures: s.unreached, Disowned: s.told != nil}
	if s.told == nil || len(s.unreached) > 0 && rpcerror.ReasonOf(s.told) == rpcerror.NotLeaderReason {
		return unreachable
	}
	return s.told
}
