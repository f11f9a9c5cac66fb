package term

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

const (
	// DefaultTTL is how long etcd keeps the keys of a replica that has stopped renewing its lease.
	DefaultTTL = 5 * time.Second
	// DefaultMovesPerSecond is how many running shards a replica releases to others in a second.
	DefaultMovesPerSecond = 32
	// DefaultStopTimeout is how long a stopping replica waits for its bodies.
	DefaultStopTimeout = 10 * time.Second
	// DefaultDrainTimeout is how long a body may take to return after the end of its term before
	// only a restart of the process can free its shard.
	DefaultDrainTimeout = 10 * time.Second

	// minTTL is the shortest TTL that etcd grants at its default election timeout.
	minTTL = 2 * time.Second
	// maxShards keeps the time of a plan, which grows with the number of shards, at a few
	// milliseconds.
	maxShards = 4096
)

var (
	// ErrEnded is wrapped by [Term.Check] after the term has ended.
	ErrEnded = localterm.ErrEnded
	// ErrNone says that a context carries no term.
	ErrNone = localterm.ErrNone

	errStarting = errors.New("the replica starts")
)

// Term is one shard held by this process: its number, its epoch, the comparison that guards etcd
// writes, and a context that ends before the etcd lease can lapse.
type Term = localterm.Term

// Body does the work of one shard for one term. Its context carries the term and ends before the
// session can lapse. Body must then return soon, because the shard is released only after it has
// returned. A body that returns earlier, with or without an error, gives the shard up; the shard is
// claimed again after a backoff.
type Body func(ctx context.Context, t *Term) error

// FromContext returns the term that ctx carries, and whether it carries one. The term may have
// ended.
func FromContext(ctx context.Context) (*Term, bool) { return localterm.FromContext(ctx) }

// Config configures a candidate. Member and Logger are required.
type Config struct {
	// Member describes this replica to the others. Its id must be new at every start.
	Member Member
	// Shards is the number of shards into which the service divides its work. With 0 the candidate
	// is a member, holds no terms and runs no body. All replicas of a service should have the same
	// number; see the promises of the package.
	Shards int
	// DryRun names the loops that this replica plans and does not write, ordered and separated by
	// commas. Replicas that differ in it do not hold shards side by side, as with Shards.
	DryRun string
	// TTL of the session, in whole seconds; 0 means DefaultTTL. etcd may grant more, never less.
	TTL time.Duration
	// MovesPerSecond limits how many running shards are released when members join; 0 means
	// DefaultMovesPerSecond.
	MovesPerSecond int
	// StopTimeout bounds the wait for bodies when Run ends; 0 means DefaultStopTimeout.
	StopTimeout time.Duration
	// DrainTimeout is how long a body may take to return after its term has ended, before
	// CheckAlive fails; 0 means DefaultDrainTimeout.
	DrainTimeout time.Duration
	// Starting says that the replica is unready until the first SetUnready(nil). Otherwise it is
	// ready from the start.
	Starting bool
	// Logger receives each claim, release and loss of a shard with its reason.
	Logger *slog.Logger
	// Metrics registers the candidate's metrics; nil means none.
	Metrics prometheus.Registerer
	// OnChange is called with each term that begins, is given up or is lost; optional. It must not
	// block.
	OnChange func(Change)
	// OnSwitch is called with the loops of DryRun that write, before a shard is claimed and at each
	// change; optional. Before the first call none writes. It must not block.
	OnSwitch func(loops []string)
}

// Change is the begin or the end of a term of this replica.
type Change struct {
	Kind  ChangeKind
	Shard int
	Epoch int64
	// Cause is why the term ended; nil for one that begins.
	Cause error
}

// ChangeKind is what happened to a term.
type ChangeKind int

const (
	// Taken terms begin.
	Taken ChangeKind = iota
	// GivenUp terms end because this replica releases the shard.
	GivenUp
	// Lost terms end although this replica did not release the shard.
	Lost
)

func (c Config) withDefaults() Config {
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.MovesPerSecond == 0 {
		c.MovesPerSecond = DefaultMovesPerSecond
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = DefaultStopTimeout
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	return c
}

// validate returns all problems, joined.
func (c Config) validate() error {
	problems := c.Member.validate()
	if c.Shards < 0 || c.Shards > maxShards {
		problems = append(problems, fmt.Errorf("%d shards: must be 0 to %d", c.Shards, maxShards))
	}
	if c.TTL < minTTL || c.TTL%time.Second != 0 {
		problems = append(problems, fmt.Errorf("TTL %v: must be whole seconds, at least %v", c.TTL, minTTL))
	}
	if c.MovesPerSecond < 0 {
		problems = append(problems, fmt.Errorf("%d moves per second: must not be negative", c.MovesPerSecond))
	}
	if c.StopTimeout < 0 {
		problems = append(problems, fmt.Errorf("stop timeout %v: must not be negative", c.StopTimeout))
	}
	if c.DrainTimeout < 0 {
		problems = append(problems, fmt.Errorf("drain timeout %v: must not be negative", c.DrainTimeout))
	}
	if c.Logger == nil {
		problems = append(problems, errors.New("no logger"))
	}
	return errors.Join(problems...)
}

// Candidate takes part in dividing the shards of one service among its replicas. Its methods are
// safe for concurrent use.
type Candidate struct {
	shared
	running atomic.Bool
}

// New returns a candidate that uses client; the caller closes client. New starts nothing. Its error
// names every problem of the configuration.
func New(client *clientv3.Client, cfg Config) (*Candidate, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("candidate for terms: %w", err)
	}
	var unready error
	if cfg.Starting {
		unready = errStarting
	}
	c := &Candidate{shared: shared{
		client: client, cfg: cfg, readiness: newReadiness(unready), published: &atomic.Pointer[snapshot]{},
	}}
	c.published.Store(&snapshot{shards: make([]shardState, cfg.Shards), problem: "not running"})
	var err error
	if c.metrics, err = newMetrics(cfg.Metrics, cfg.Member.ID, c.Status); err != nil {
		return nil, fmt.Errorf("candidate for terms: %w", err)
	}
	return c, nil
}

// Run joins the members of the service, claims shards and runs body for each shard held, one
// goroutine per shard, until ctx ends. After the loss of a session it joins again. When ctx ends,
// the contexts of the bodies end; after the bodies have returned, their keys are deleted and the
// lease is revoked. Run then returns nil. It returns an error if bodies have not returned within
// the stop timeout; their shards stay claimed until the lease expires. A second call while one runs
// is an error.
func (c *Candidate) Run(ctx context.Context, body Body) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("candidate is running already: Run was called twice")
	}
	defer c.running.Store(false)
	defer c.stopped()
	if _, err := (announcement{Member: c.cfg.Member}).encode(); err != nil {
		return fmt.Errorf("announce replica %q: %w", c.cfg.Member.ID, err)
	}
	return newReplica(c.shared, body).run(ctx)
}

// stopped publishes that no goroutine of Run remains, so that CheckAlive does not miss it.
func (c *Candidate) stopped() {
	last := *c.published.Load()
	last.at = time.Time{}
	c.published.Store(&last)
}

// SetUnready reports why this replica cannot do the work of a shard, or nil if it can. Call it
// whenever that changes. It does not block. An unready replica gets no shards while others can do
// the work, and releases its shards to them if it stays unready; package eligibility has the times.
func (c *Candidate) SetUnready(reason error) { c.readiness.set(&c.readiness.unready, reason) }

// YieldLeadership reports that this replica cannot do the work of a shard and that other replicas
// can. A nil reason ends that. It does not block.
//
// In contrast to SetUnready, the shards move at once to ready replicas, or to replicas that can do
// the work now if none is ready. Borrowed shards that were claimed recently stay for two TTLs.
// There is no backoff afterwards: the replica gets its shards back as soon as the reason is nil. If
// every replica yields, no shard moves. SetUnready and YieldLeadership are independent; each one
// suffices to move shards.
func (c *Candidate) YieldLeadership(reason error) { c.readiness.set(&c.readiness.yielding, reason) }

// PreferOthers reports that this replica can do the work of a shard, and why ready replicas should
// get shards before it. A nil reason ends that. It does not block. The replica keeps the shards
// that it has, and gets shards while no other replica is ready.
func (c *Candidate) PreferOthers(reason error) { c.readiness.set(&c.readiness.preferred, reason) }

// Status returns a snapshot of the session and of every shard. It does not block.
func (c *Candidate) Status() Status { return c.published.Load().status() }

// Check returns nil while the session is alive, with or without shards, and no body ignores the end
// of its term. Otherwise it returns the reason.
func (c *Candidate) Check() error { return c.published.Load().check() }

// CheckAlive is the check of /livez. It fails while a restart of the process is the only remedy: a
// body has not returned within the drain timeout after the end of its term, or the goroutine of Run
// does not get on. It does not fail because of etcd: an etcd that is slow or away delays Run by its
// request timeouts, which are far below the limit.
func (c *Candidate) CheckAlive() error {
	return c.published.Load().checkAlive(time.Now(), c.cfg.DrainTimeout)
}

// Session returns the replica's lease, for keys that must vanish with the replica, and a context
// that ends before the lease can lapse. It is false while no session is alive.
func (c *Candidate) Session() (clientv3.LeaseID, context.Context, bool) {
	s := c.published.Load().session
	if s == nil || s.lease.Remaining() == 0 {
		return clientv3.NoLease, nil, false
	}
	return s.id, s.lease.Context(), true
}
