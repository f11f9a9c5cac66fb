package sessioncontroller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unique"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrStopped is returned after Run has returned. All sessions are gone then.
var ErrStopped = errors.New("the session controller has stopped")

const (
	// maxQueuedBatches is the number of batches that wait for the owner. Senders of further batches
	// block.
	maxQueuedBatches = 256
	// maxTransitions is the number of sessions that one pass looks at: about a millisecond of work.
	maxTransitions = 2000
	// slotsPerCall is the number of slots that the owner scans in one call.
	slotsPerCall = 5000
	// noShard marks slots without a session. Shards have smaller numbers.
	noShard = ^uint16(0)
	// pauseTolerance is the longest gap between two readings of the clock that does not count as a
	// pause of the process. The owner reads the clock with every tick.
	pauseTolerance = time.Second
)

// Class is one kind of holder.
type Class struct {
	// Namespace is the namespace of the Leases. No two classes share one.
	Namespace string
	// Unowned classes have Leases that no Node owns.
	Unowned bool
	Session session.Class
	Writes  writeback.Policy
}

// Config configures a Controller.
type Config struct {
	// Classes are indexed by session.ClassID.
	Classes []Class
	// Shards is the number of all shards, below 65,535.
	Shards int
	// Limit is the maximum number of sessions of all shards together.
	Limit int
	// SessionsPerOwner is how many sessions the registrations with one Owner open; 0 is no limit.
	SessionsPerOwner int
	// AdoptLeases says that BeginAdoption is called. The Leases of a new shard's holders then wait
	// for adoption before their first write.
	AdoptLeases bool
	// FillTime is how long after the start of its term a shard has sessions for only a part of its
	// live holders, which have yet to register here. Lists and watches do not name it until then.
	FillTime time.Duration
	// OnTick is called about forty times a second, after the transitions that were due. It must not
	// block. Optional.
	OnTick func()
	// OnDuplicate is called with each sign that two machines have the name of one holder: a
	// repeated rejection of one of them, and the return of a replaced boot. It must not block.
	// Optional.
	OnDuplicate func(DuplicateBoots)
	// Logger is required.
	Logger *slog.Logger
	// Decisions records expired sessions and duplicates; nil records nothing.
	Decisions *decisions.Log
}

// DuplicateBoots are two boots that send heartbeats under one name.
type DuplicateBoots struct {
	Holder session.Key
	// Current has the session, Other was rejected or has just been replaced.
	Current, Other string
}

// Controller runs the sessions of the held shards. All methods are safe for concurrent use, also
// before and after Run.
type Controller struct {
	cfg             Config
	batches         chan *Batch
	calls           chan func()
	done            chan struct{} // closed by Run when it returns
	instanceID      uint64
	shortestSuspect time.Duration // of all classes
	counts          counts
	heartbeats      *session.Heartbeats
	clockReader     atomic.Pointer[monotonic.Reader] // nil before Run
	keyIndex        atomic.Pointer[keyIndex]
	leadership      atomic.Pointer[leadership] // nil while no shard is held
	backlog         atomic.Pointer[writeback.Backlog]
	problems        atomic.Pointer[Problems]

	// The goroutine of Run owns the fields below.
	clock        monotonic.Clock
	table        *session.Table
	held         []*HeldShard        // by shard; nil if not held
	heldSince    []monotonic.Instant // by shard
	leaving      []bool              // by shard: registrations are rejected, sessions are being dropped
	filled       []bool              // by shard: Config.FillTime has passed
	adoptions    adoptions
	writes       *writeback.Schedule
	shards       session.Slab[uint16]                       // by slot
	entries      session.Slab[leaseEntry]                   // by slot
	observed     session.Slab[bool]                         // by slot: Lease.Observed
	agents       session.Slab[unique.Handle[session.Agent]] // by slot: Lease.Agent
	changes      changeList
	exceptions   writeExceptions
	problemSlots problemSlots
	reports      reports
	reporters    reporters
	released     released
	owners       owners
	occupancies  uint64
	// moreDue is alwaysReady while the last pass left transitions that are due, otherwise nil.
	moreDue     <-chan struct{}
	alwaysReady chan struct{} // closed
}

// counts are read without asking the owner.
type counts struct {
	alive, suspect, expired, paused, late, duplicates atomic.Int64
}

// New returns a Controller without shards. It starts nothing.
func New(cfg Config) *Controller {
	c := &Controller{
		cfg:        cfg,
		batches:    make(chan *Batch, maxQueuedBatches),
		calls:      make(chan func()),
		done:       make(chan struct{}),
		instanceID: rand.Uint64(),
		held:       make([]*HeldShard, cfg.Shards),
		heldSince:  make([]monotonic.Instant, cfg.Shards),
		leaving:    make([]bool, cfg.Shards),
		filled:     make([]bool, cfg.Shards),
		adoptions:  newAdoptions(),
		changes:    newChangeList(),
		exceptions: newWriteExceptions(), reports: newReports(cfg.Limit, cfg.Logger), reporters: newReporters(), released: newReleased(cfg.Limit),
		owners: newOwners(cmp.Or(cfg.SessionsPerOwner, cfg.Limit)), alwaysReady: make(chan struct{}),
	}
	close(c.alwaysReady)
	policies := make([]writeback.Policy, 0, len(cfg.Classes))
	classes := make([]session.Class, 0, len(cfg.Classes))
	for _, class := range cfg.Classes {
		classes = append(classes, class.Session)
		if c.shortestSuspect == 0 || class.Session.Suspect < c.shortestSuspect {
			c.shortestSuspect = class.Session.Suspect
		}
		policies = append(policies, class.Writes)
	}
	c.table = session.NewTable(classes, cfg.Limit)
	c.heartbeats = c.table.Heartbeats()
	c.writes = writeback.NewSchedule(policies)
	return c
}

// Run owns the sessions until ctx ends. It may be called once.
func (c *Controller) Run(ctx context.Context) error {
	defer close(c.done)
	c.clock = monotonic.StartClock(session.Granularity, pauseTolerance)
	c.clockReader.Store(c.clock.Reader())
	ticker := time.NewTicker(session.Granularity)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case b := <-c.batches:
			c.process(b)
		case call := <-c.calls:
			call()
		case <-ticker.C:
			c.advance()
			c.maintain()
		case <-c.moreDue:
			c.advance()
		}
		c.publishCounts()
	}
	return nil
}

// Done returns a channel that is closed when Run returns.
func (c *Controller) Done() <-chan struct{} { return c.done }

// do lets the owner run call and waits for its end. After an error of ctx, call has not run and
// will not.
func (c *Controller) do(ctx context.Context, call func()) error {
	ran := make(chan struct{})
	request := func() {
		defer close(ran)
		call()
	}
	select {
	case c.calls <- request:
	case <-c.done:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	<-ran // the owner runs each call that it has received
	return nil
}

// forEachSlotRange lets the owner run call on all slots, slotsPerCall at a time.
func (c *Controller) forEachSlotRange(ctx context.Context, call func(first, end uint32)) error {
	for first, slots := 0, 1; first < slots; first += slotsPerCall {
		err := c.do(ctx, func() {
			slots = c.shards.Len()
			call(uint32(first), uint32(min(first+slotsPerCall, slots)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// advance makes the transitions that are due, in portions.
func (c *Controller) advance() {
	now := c.now()
	c.moreDue = nil
	if c.table.Advance(now, maxTransitions, func(t session.Transition) { c.applyTransition(now, t) }) {
		c.moreDue = c.alwaysReady
		return
	}
	if c.cfg.OnTick != nil {
		c.cfg.OnTick()
	}
}

func (c *Controller) applyTransition(now monotonic.Instant, t session.Transition) {
	slot := t.Ref.Slot()
	switch t.To {
	case session.Expired:
		c.recordLease(decisions.LeaseExpired, slot, t.Holder.Key, "its session expired: no heartbeat came in time", now)
		c.reporterAtExpiry(now, slot)
		c.writes.HolderExpired(now, slot)
		c.problemSlots.written(slot) // a write that is still wanted and fails adds it again
		c.changes.touch(slot)
	case session.Gone:
		c.sessionGone(slot, t.Holder)
	default:
		c.changes.touch(slot)
	}
}

// maintain runs with every tick.
func (c *Controller) maintain() {
	now := c.now()
	c.adoptions.dropUnclaimed(now)
	c.released.forget(now)
	if b := c.writes.Backlog(now); b != c.Backlog() {
		c.backlog.Store(&b)
	}
	c.updateProblems(now)
	c.dropSilentReporters(now)
}

func (c *Controller) publishCounts() {
	counts := c.table.Counts()
	c.counts.alive.Store(int64(counts.Alive))
	c.counts.suspect.Store(int64(counts.Suspect))
	c.counts.expired.Store(int64(counts.Expired))
}

// now reads the clock. Any call may be the first after a pause of the process, so each reports one.
func (c *Controller) now() monotonic.Instant {
	now, paused := c.clock.Read()
	c.counts.late.Store(int64(c.clock.Late()))
	if paused > 0 {
		c.counts.paused.Add(int64(paused))
		c.cfg.Logger.Warn("process was paused; session deadlines are extended", "for", paused)
	}
	return now
}

// Counts returns the number of sessions by state, as of the last pass.
func (c *Controller) Counts() session.Counts {
	return session.Counts{
		Alive: int(c.counts.alive.Load()), Suspect: int(c.counts.suspect.Load()), Expired: int(c.counts.expired.Load()),
	}
}

// Backlog returns the writes that are due and not in flight, as of the last tick.
func (c *Controller) Backlog() writeback.Backlog {
	if b := c.backlog.Load(); b != nil {
		return *b
	}
	return writeback.Backlog{}
}

// InstanceID is random. A Version is valid for the Controller with the same InstanceID only.
func (c *Controller) InstanceID() uint64 { return c.instanceID }

// Duplicates counts the episodes in which two boots of one holder beat.
func (c *Controller) Duplicates() int64 { return c.counts.duplicates.Load() }

// PausedTime is the total time for which the process did not run.
func (c *Controller) PausedTime() time.Duration { return time.Duration(c.counts.paused.Load()) }

// LateTime is the total time by which the owner ran later than with every tick, pauses included.
func (c *Controller) LateTime() time.Duration { return time.Duration(c.counts.late.Load()) }
