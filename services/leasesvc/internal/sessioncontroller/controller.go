package sessioncontroller

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/pauseclock"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrEnded says that the Keeper has ended, and its sessions with it.
var ErrStopped = errors.New("the sessions are not kept any more")

const (
	// waiting bounds the exchanges that may wait for the owner; the senders of further ones block.
	maxQueuedBatches = 256
	// share is how many sessions are looked at in one go: about a millisecond.
	maxTransitions = 2000
	// noShard marks the slots without a session. Shards are numbered below it.
	noShard = ^uint16(0)
)

// Class is one kind of holder: where its Leases live, how it lives and how it is written.
type Class struct {
	Namespace string
	// Unowned classes have Leases that belong to no Node.
	Unowned bool
	Session session.Class
	Writes  writeback.Policy
}

// Config is what a Keeper is made of.
type Config struct {
	// Classes are numbered by their place: the first is session.ClassID 0. Their namespaces differ.
	Classes []Class
	// Shards is how many shards there are, here and elsewhere; less than 65,535.
	Shards int
	// Limit is how many sessions there may be in all shards together.
	Limit int
	// Surveys tells that somebody makes them, so that the objects of new shards need not be written unseen at once.
	AdoptLeases bool
	// Passed is called about forty times a second, after what was due has been done; it must not block. May be nil.
	OnTick func()
	Logger *slog.Logger
}

// tolerance is how long the owner may go without reading its clock. It reads it with every tick of the wheel, so whoever
// reads it later than that was not running, and neither was the receipt of beats.
const pauseTolerance = time.Second

// Keeper keeps the sessions of the shards that are held here. All methods but Run may be called by any goroutine, before and after it too.
type Controller struct {
	cfg             Config
	batches         chan *Batch
	calls           chan func()
	done            chan struct{} // closed by Run when it returns
	instanceID      uint64        // told apart from all other Keepers by chance
	shortestSuspect time.Duration // silence that makes a holder of any class suspect
	counts          counts
	heartbeats      *session.Heartbeats
	reader          atomic.Pointer[pauseclock.Reader] // nil before Run
	keyIndex        atomic.Pointer[keyIndex]
	leadership      atomic.Pointer[leadership] // nil while no shard is kept
	backlog         atomic.Pointer[writeback.Backlog]

	// What follows belongs to the goroutine in Run.
	clock       pauseclock.Clock
	table       *session.Table
	held        []*heldshards.Shard // by shard; nil where the shard is not kept here
	heldSince   []monotonic.Instant // by shard: when kept began
	leaving     []bool              // by shard: no holder is taken in any more
	adoptions   adoptions
	writes      *writeback.Schedule
	shards      slab.Slab[uint16]     // by slot
	entries     slab.Slab[leaseEntry] // by slot
	changes     changeList
	exceptions  writeExceptions
	occupancies uint64
	ready       <-chan struct{}
	// again is ready while the last pass has left something that is due.
	moreDue <-chan struct{}
}

// counts lets others see how many sessions there are without asking the owner.
type counts struct {
	alive, suspect, expired, paused, duplicates atomic.Int64
}

// New returns a Keeper without shards. It starts nothing.
func New(cfg Config) *Controller {
	k := &Controller{
		cfg:        cfg,
		batches:    make(chan *Batch, maxQueuedBatches),
		calls:      make(chan func()),
		done:       make(chan struct{}),
		instanceID: rand.Uint64(),
		ready:      closed(),
		held:       make([]*heldshards.Shard, cfg.Shards),
		heldSince:  make([]monotonic.Instant, cfg.Shards),
		leaving:    make([]bool, cfg.Shards),
		adoptions:  newAdoptions(),
		changes:    newChangeList(),
		exceptions: newWriteExceptions(),
	}
	policies := make([]writeback.Policy, 0, len(cfg.Classes))
	classes := make([]session.Class, 0, len(cfg.Classes))
	for _, c := range cfg.Classes {
		classes = append(classes, c.Session)
		if k.shortestSuspect == 0 || c.Session.Suspect < k.shortestSuspect {
			k.shortestSuspect = c.Session.Suspect
		}
		policies = append(policies, c.Writes)
	}
	k.table = session.NewTable(classes, cfg.Limit)
	k.heartbeats = k.table.Heartbeats()
	k.writes = writeback.NewSchedule(policies)
	return k
}

// Run keeps the sessions until ctx ends. It may be called once.
func (k *Controller) Run(ctx context.Context) error {
	defer close(k.done)
	k.clock = pauseclock.Start(session.Granularity, pauseTolerance)
	k.reader.Store(k.clock.Reader())
	ticker := time.NewTicker(session.Granularity)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case x := <-k.batches:
			k.process(x)
		case call := <-k.calls:
			call()
		case <-ticker.C:
			k.advance()
			k.maintain()
		case <-k.moreDue:
			k.advance()
		}
		k.publish()
	}
	return nil
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Done is closed once the Keeper answers no more.
func (k *Controller) Done() <-chan struct{} { return k.done }

// Counts is how many sessions there are, as of a moment ago.
func (k *Controller) Counts() session.Counts {
	return session.Counts{
		Alive: int(k.counts.alive.Load()), Suspect: int(k.counts.suspect.Load()), Expired: int(k.counts.expired.Load()),
	}
}

// Life tells this Keeper from all others, so that Versions of one are not taken for another's.
func (k *Controller) InstanceID() uint64 { return k.instanceID }

// Duplicates is how often it was found that two boots of one holder beat.
func (k *Controller) Duplicates() int64 { return k.counts.duplicates.Load() }

// Blind is how long in all the process could not receive.
func (k *Controller) PausedTime() time.Duration { return time.Duration(k.counts.paused.Load()) }

// do has the owner run call and waits until it has. With an error from ctx, call has not run and will not.
func (k *Controller) do(ctx context.Context, call func()) error {
	ran := make(chan struct{})
	asked := func() {
		defer close(ran)
		call()
	}
	select {
	case k.calls <- asked:
	case <-k.done:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	<-ran // the owner runs a call as soon as it has taken it
	return nil
}

// Backlog is what is to be written and not under way, as of a moment ago.
func (k *Controller) Backlog() writeback.Backlog {
	if b := k.backlog.Load(); b != nil {
		return *b
	}
	return writeback.Backlog{}
}

// look does what needs to be done now and then.
func (k *Controller) maintain() {
	now := k.now()
	k.adoptions.dropUnclaimed(now)
	if b := k.writes.Backlog(now); b != k.Backlog() {
		k.backlog.Store(&b)
	}
}

func (k *Controller) publish() {
	c := k.table.Counts()
	k.counts.alive.Store(int64(c.Alive))
	k.counts.suspect.Store(int64(c.Suspect))
	k.counts.expired.Store(int64(c.Expired))
}

// now is the receiving time. Every use of it may be the first after the process stood still, so each looks.
func (k *Controller) now() monotonic.Instant {
	now, lost := k.clock.Read()
	if lost > 0 {
		k.counts.paused.Add(int64(lost))
		k.cfg.Logger.Warn("nothing could be received for a while; deadlines are put off by as much", "for", lost)
	}
	return now
}

func (k *Controller) ticked() {
	if k.cfg.OnTick != nil {
		k.cfg.OnTick()
	}
}

// advance makes transitions that are due, a share of them at a time, so that beats which only the owner can take need not
// wait until a whole fleet has been declared silent.
func (k *Controller) advance() {
	now := k.now()
	k.moreDue = nil
	if k.table.Advance(now, maxTransitions, func(step session.Transition) { k.applyTransition(now, step) }) {
		k.moreDue = k.ready
		return
	}
	k.ticked()
}

func (k *Controller) applyTransition(now monotonic.Instant, step session.Transition) {
	slot := step.Ref.Slot()
	switch step.To {
	case session.Expired:
		k.writes.HolderExpired(now, slot)
		k.changes.touch(slot)
	case session.Gone:
		k.sessionGone(slot, step.Holder)
	default:
		k.changes.touch(slot)
	}
}
