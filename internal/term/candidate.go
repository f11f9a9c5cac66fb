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
)

const (
	// DefaultTTL is how long etcd keeps the keys of a replica that has stopped renewing its lease.
	DefaultTTL = 5 * time.Second
	// DefaultMovesPerSecond is how many running shards a replica gives away to others in a second.
	DefaultMovesPerSecond = 32
	// DefaultStopTimeout is how long a stopping replica waits for its bodies.
	DefaultStopTimeout = 10 * time.Second

	// minTTL is the least that etcd grants at its default election timeout.
	minTTL = 2 * time.Second
	// maxShards keeps the work of deciding, which grows with the number of shards, in the low milliseconds.
	maxShards = 4096
)

// Config says who a candidate is and what it stands for.
type Config struct {
	// Member is what others learn about this replica. Its id must be new at every start.
	Member Member
	// Shards is the number of shards into which the service divides its work. With 0 the candidate is a member, holds no
	// terms and runs no body. All replicas of a service should agree; while they do not, see the package's promises.
	Shards int
	// TTL of the session, in whole seconds; 0 means DefaultTTL. etcd may grant more, never less.
	TTL time.Duration
	// MovesPerSecond limits how many running shards are given away when members join; 0 means DefaultMovesPerSecond.
	MovesPerSecond int
	// StopTimeout bounds the wait for bodies when Run ends; 0 means DefaultStopTimeout.
	StopTimeout time.Duration
	// Starting says that the replica cannot do the work of a shard before SetUnready is told otherwise. Without it a replica
	// counts as able from the start.
	Starting bool
	// Logger tells what is claimed, released and lost, and why. It is required.
	Logger *slog.Logger
	// Metrics takes the candidate's metrics; nil means none.
	Metrics prometheus.Registerer
}

// withDefaults fills what is not set.
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
	return c
}

// validate returns all that is wrong.
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
	if c.Logger == nil {
		problems = append(problems, errors.New("no logger"))
	}
	return errors.Join(problems...)
}

// Candidate takes part in dividing the shards of one service among its replicas. Its methods are safe for concurrent use.
type Candidate struct {
	client  *clientv3.Client
	cfg     Config
	metrics *metrics
	running atomic.Bool
	state   atomic.Pointer[snapshot] // never nil; Run publishes, everybody reads
	unready atomic.Pointer[error]    // never nil; what SetUnready was told last
	nudged  chan struct{}            // holds a value while Run has yet to look at unready or conceded
	// conceded is never nil; what Concede was told last.
	conceded atomic.Pointer[error]
}

var errStarting = errors.New("the replica starts")

// New returns a candidate that uses client, which stays the caller's. It starts nothing; its error names everything that is
// wrong with the configuration.
func New(client *clientv3.Client, cfg Config) (*Candidate, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("candidate for terms: %w", err)
	}
	c := &Candidate{client: client, cfg: cfg, nudged: make(chan struct{}, 1)}
	var unready error
	if cfg.Starting {
		unready = errStarting
	}
	c.unready.Store(&unready)
	c.conceded.Store(new(error))
	c.state.Store(&snapshot{shards: make([]shardState, cfg.Shards), problem: "not running"})
	var err error
	if c.metrics, err = newMetrics(cfg.Metrics, c); err != nil {
		return nil, fmt.Errorf("candidate for terms: %w", err)
	}
	return c, nil
}

// Run joins the service's members, claims shards and runs body for each shard held, one goroutine per shard, until ctx ends.
// Whatever ends the session meanwhile is logged and answered by joining again. When ctx ends, the bodies' contexts end; once
// they have returned, their keys are deleted and the lease is revoked. Run then returns nil. It returns an error if bodies
// have not returned within the stop timeout: their shards stay claimed until the lease runs out. Only one Run may be under
// way at a time.
func (c *Candidate) Run(ctx context.Context, body Body) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("candidate is running already: Run was called twice")
	}
	defer c.running.Store(false)
	if _, err := (announcement{Member: c.cfg.Member}).encode(); err != nil {
		return fmt.Errorf("announce replica %q: %w", c.cfg.Member.ID, err)
	}
	return newReplica(c, body).run(ctx)
}

// SetUnready says why this replica could not do the work of a shard now, or by nil that it could. It is to be called whenever
// that changes and may be called at any time; it does not block. A replica that cannot do the work is given no shards while
// others can, and gives theirs to them when it stays that way; see package standing for how long that takes.
func (c *Candidate) SetUnready(reason error) {
	c.tell(&c.unready, reason)
}

// Concede says that this replica cannot do the work of a shard now and that others are known to be able to; nil takes that
// back. Where SetUnready leaves time to find out whether all suffer from the same, nothing is waited for here: what this replica
// holds goes to the ready ones at once, but for shards just taken over from one that let them lie. Nor is it held against the
// replica afterwards: it gets its shards back as soon as it takes the concession back, so who calls this has to be sure by then.
// Where all concede, all stay where they are. Like SetUnready it does not block, and what either says holds by itself.
func (c *Candidate) Concede(reason error) {
	c.tell(&c.conceded, reason)
}

// tell replaces a reason and has Run look at it if there was none before, or is none any more.
func (c *Candidate) tell(where *atomic.Pointer[error], reason error) {
	before := where.Swap(&reason)
	if (*before == nil) == (reason == nil) {
		return
	}
	select {
	case c.nudged <- struct{}{}:
	default: // Run will look anyway
	}
}

// Status is a snapshot of the session and of every shard. It never blocks.
func (c *Candidate) Status() Status { return c.state.Load().status() }

// Check returns nil while the session is alive, whether or not it holds a shard, and every body ends when it is told to.
// Otherwise its error is the reason.
func (c *Candidate) Check() error { return c.state.Load().check() }

// Session returns the replica's lease, for keys that are to vanish with the replica, and a context that ends before the
// lease can lapse. It is false while there is no live session.
func (c *Candidate) Session() (clientv3.LeaseID, context.Context, bool) {
	s := c.state.Load().session
	if s == nil || s.lease.Remaining() == 0 {
		return clientv3.NoLease, nil, false
	}
	return s.id, s.lease.Context(), true
}
