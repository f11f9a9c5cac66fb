package leader

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
	cfg    Config
	memory *memory
}

// memory is who owns what, as far as it was seen.
type memory struct {
	mu    sync.Mutex        // guards known
	known map[string]string // id of the replica that answered last, by the name of what it was asked about
}

// New returns a Router that knows nothing yet. It contacts nobody.
func New(cfg Config) *Router {
	return &Router{cfg: cfg, memory: &memory{known: map[string]string{}}}
}

// Patient returns a Router that gives each call so long, for what takes longer to answer. Both know what either learns.
func (r *Router) Patient(timeout time.Duration) *Router {
	patient := *r
	patient.cfg.Timeout = timeout
	return &patient
}

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
	search := r.begin(name)
	answer, by, err := pursue(ctx, r, search, search.take, call)
	if err == nil {
		r.memory.learn(name, by.ID)
	}
	return answer, err
}

// Any asks for what every replica can answer, the owner of what name names first, where it is known: it knows most. A replica that
// is unavailable for whatever reason is passed over. The error is what one of them said that could be asked, or UnreachableError.
func Any[Answer any](ctx context.Context, r *Router, name string, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	search := r.begin(name)
	answer, _, err := pursue(ctx, r, search, search.passOver, call)
	return answer, err
}

// pursue asks one replica after the other, until one answers or take says of an error that it is the answer.
func pursue[Answer any](ctx context.Context, r *Router, search *search, take func(term.Member, error, time.Duration) bool,
	call func(context.Context, grpc.ClientConnInterface) (Answer, error),
) (Answer, term.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*r.cfg.Timeout)
	defer cancel()
	var none Answer
	for member, ok := search.next(); ok; member, ok = search.next() {
		started := time.Now()
		answer, err := ask(ctx, r, member, call)
		if err == nil || take(member, err, time.Since(started)) {
			return answer, member, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return none, term.Member{}, search.failure()
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

func (m *memory) learn(name, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxKnown {
		clear(m.known)
	}
	m.known[name] = id
}

// last is who answered last, or "".
func (m *memory) last(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[name]
}

// begin lines the replicas up: who answered last comes first.
func (r *Router) begin(name string) *search {
	members := slices.Clone(r.cfg.Members())
	last := r.memory.last(name)
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
	if s.isUnreached(member, err, after) {
		return false
	}
	switch reason := rpcerror.ReasonOf(err); reason {
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

// passOver takes an error about what any replica may answer, and says whether it is the answer.
func (s *search) passOver(member term.Member, err error, after time.Duration) (answers bool) {
	if s.isUnreached(member, err, after) {
		return false
	}
	if status.Code(err) != codes.Unavailable && rpcerror.ReasonOf(err) != rpcerror.UnknownMethodReason {
		return true
	}
	if s.told == nil {
		s.told = err // another one may do better, at another kube-apiserver for example
	}
	return false
}

// isUnreached notes that nobody is there, or gives no answer in time.
func (s *search) isUnreached(member term.Member, err error, after time.Duration) bool {
	if rpcerror.ReasonOf(err) != "" && status.Code(err) != codes.DeadlineExceeded {
		return false
	}
	s.unreached = append(s.unreached, fanout.Failure(member, err, after))
	return true
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
