package quota

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// MaxUsers, maxReplicas and maxAddresses bound the identities with meters of their own.
	MaxUsers     = 10_000
	maxReplicas  = 1_000
	maxAddresses = 10_000
	// peerFactor multiplies the limits of gateways and servers.
	peerFactor = 20
	// inFlightPause is when a caller with too many calls in flight may repeat the call.
	inFlightPause = time.Second
)

const (
	reasonTooManyCalls    rpcerror.Reason = "TOO_MANY_CALLS"
	reasonTooManyInFlight rpcerror.Reason = "TOO_MANY_CALLS_IN_FLIGHT"
)

// MessageTooLargeReason is the reason of a message or of headers above their limit.
const MessageTooLargeReason rpcerror.Reason = "MESSAGE_TOO_LARGE"

// Quota limits the calls of each identity. It is safe for concurrent use. A nil Quota admits every
// call.
type Quota struct {
	methods  map[string]method
	refusals *prometheus.CounterVec
	start    time.Time

	mu        sync.Mutex // guards the accounts in the populations
	users     *population[string]
	replicas  *population[string]
	addresses *population[netip.Addr]
}

// method is one row of the table.
type method struct {
	Limit
	index uint16
}

// New returns a Quota with the limits of table, and registers its metrics unless registerer is nil.
// It fails for limits that would refuse each call.
func New(table Table, registerer prometheus.Registerer) (*Quota, error) {
	q := &Quota{
		methods: make(map[string]method, len(table)),
		start:   time.Now(),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_quota_refusals_total",
			Help: "Calls that a limit of their identity refused, by method and reason.",
		}, []string{"method", "reason"}),
	}
	var callers, peers []limit
	for _, name := range slices.Sorted(maps.Keys(table)) {
		of := table[name]
		if !of.CountedByHandler && (of.Rate <= 0 || of.Burst < 1 || of.InFlight < 1) {
			return nil, fmt.Errorf("quota of %s: rate, burst and calls in flight must be positive", name)
		}
		q.methods[name] = method{Limit: of, index: uint16(len(callers))}
		callers = append(callers, newLimit(of, 1))
		peers = append(peers, newLimit(of, peerFactor))
	}
	q.users = newPopulation[string](callers, MaxUsers)
	q.replicas = newPopulation[string](peers, maxReplicas)
	q.addresses = newPopulation[netip.Addr](callers, maxAddresses)
	return q, q.register(registerer)
}

func (q *Quota) register(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	identities := func(kind string, count func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_quota_identities", Help: "Identities with meters of their own, by kind.",
			ConstLabels: prometheus.Labels{"kind": kind},
		}, func() float64 {
			q.mu.Lock()
			defer q.mu.Unlock()
			return float64(count())
		})
	}
	if err := errors.Join(
		registerer.Register(q.refusals),
		registerer.Register(identities("user", func() int { return len(q.users.order) })),
		registerer.Register(identities("replica", func() int { return len(q.replicas.order) })),
		registerer.Register(identities("address", func() int { return len(q.addresses.order) })),
	); err != nil {
		return fmt.Errorf("register quota metrics: %w", err)
	}
	return nil
}

// Covers returns an error that names every method without limits.
func (q *Quota) Covers(methods []string) error {
	if q == nil {
		return nil
	}
	var missing []string
	for _, name := range methods {
		if _, ok := q.methods[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("no quota for %s: add them to internal/quota/table.go", strings.Join(missing, ", "))
}

// Slot is one call in flight. Its owner calls Release once.
type Slot struct {
	quota   *Quota
	account *account // nil if the call does not count
	method  uint16
	// interval is what the call costs.
	interval time.Duration
}

// Release ends the call.
func (s Slot) Release() {
	if s.account == nil {
		return
	}
	s.quota.mu.Lock()
	s.account.meter(s.method).inFlight--
	s.quota.mu.Unlock()
}

// Refund ends the call, which then does not count for the rate. Its owner calls it instead of
// Release.
func (s Slot) Refund() {
	if s.account == nil {
		return
	}
	s.quota.mu.Lock()
	of := s.account.meter(s.method)
	of.paid -= moment(s.interval)
	of.inFlight--
	s.quota.mu.Unlock()
}

// Admit counts a call of caller to a full gRPC method. The error is a gRPC status: TOO_MANY_CALLS
// or TOO_MANY_CALLS_IN_FLIGHT, with the time after which a retry may succeed. A method that is not
// in the table passes: a server that serves one does not start, and gRPC answers calls of unknown
// methods.
func (q *Quota) Admit(caller Caller, fullMethod string, now time.Time) (Slot, error) {
	if q == nil || caller.kind == unlimited {
		return Slot{}, nil
	}
	called, ok := q.methods[fullMethod]
	if !ok || called.CountedByHandler {
		return Slot{}, nil
	}
	taken, of, result, wait := q.count(caller, called.index, moment(now.Sub(q.start)))
	if result == admitted {
		return Slot{quota: q, account: taken, method: called.index, interval: of.interval}, nil
	}
	return Slot{}, q.refuse(caller, fullMethod, called.Limit, result, wait)
}

// count counts a call in the account of its identity.
func (q *Quota) count(caller Caller, index uint16, now moment) (*account, limit, refusal, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var taken *account
	var of limit
	switch caller.kind {
	case replica:
		taken, of = q.replicas.account(caller.name, now), q.replicas.limits[index]
	case address:
		taken, of = q.addresses.account(caller.from, now), q.addresses.limits[index]
	default:
		taken, of = q.users.account(caller.name, now), q.users.limits[index]
	}
	result, wait := taken.meter(index).admit(of, now)
	return taken, of, result, wait
}

// refusal is why a call is refused.
type refusal uint8

const (
	admitted refusal = iota
	tooMany
	tooManyInFlight
)

// refuse returns the status of a refused call. The wait has jitter, so that processes of one
// identity do not return together.
func (q *Quota) refuse(caller Caller, fullMethod string, of Limit, why refusal, wait time.Duration) error {
	factor := 1
	if caller.kind == replica {
		factor = peerFactor
	}
	wait += rand.N(wait/2 + time.Millisecond)
	name := strings.TrimPrefix(fullMethod, "/")
	if why == tooManyInFlight {
		q.refusals.WithLabelValues(name, string(reasonTooManyInFlight)).Inc()
		return rpcerror.New(codes.ResourceExhausted, reasonTooManyInFlight,
			fmt.Sprintf("%s has %d calls of %s in flight, which is the limit; end one first", caller, of.InFlight*factor, name),
			rpcerror.WithRetryAfter(wait))
	}
	q.refusals.WithLabelValues(name, string(reasonTooManyCalls)).Inc()
	return rpcerror.New(codes.ResourceExhausted, reasonTooManyCalls,
		fmt.Sprintf("%s makes more than %g calls of %s per second", caller, of.Rate*float64(factor), name),
		rpcerror.WithRetryAfter(wait))
}

// MaxBytes returns the limit of a message of a method, and whether it is another one for a caller
// with many holders. 0 leaves only the limit of the server.
func (q *Quota) MaxBytes(fullMethod string) (limit int, batched bool) {
	if q == nil {
		return 0, false
	}
	of := q.methods[fullMethod]
	return of.MaxBytes, of.Batched
}

// TooLarge counts a message that is larger than the limit of its caller, or has more items than fit
// the limit, and returns MESSAGE_TOO_LARGE.
func (q *Quota) TooLarge(fullMethod string, size, limit int) error {
	name := strings.TrimPrefix(fullMethod, "/")
	if q != nil {
		q.refusals.WithLabelValues(name, string(MessageTooLargeReason)).Inc()
	}
	text := fmt.Sprintf("a message of %d bytes has too many items for %s", size, name)
	if size > limit {
		text = fmt.Sprintf("the message has %d bytes; %s takes %d of this caller", size, name, limit)
	}
	return rpcerror.New(codes.ResourceExhausted, MessageTooLargeReason, text)
}

// String names the caller in errors.
func (c Caller) String() string {
	switch c.kind {
	case address:
		return "address " + c.from.String()
	default:
		return fmt.Sprintf("user %q", c.name)
	}
}
