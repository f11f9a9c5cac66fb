package keeper

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/column"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/stopwatch"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrEnded says that the Keeper has ended, and its sessions with it.
var ErrEnded = errors.New("the sessions are not kept any more")

const (
	// waiting bounds the exchanges that may wait for the owner; the senders of further ones block.
	waiting = 256
	// share is how many sessions are looked at in one go: about a millisecond.
	share = 2000
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
	Surveys bool
	// Passed is called about forty times a second, after what was due has been done; it must not block. May be nil.
	Passed func()
	Logger *slog.Logger
}

// tolerance is how long the owner may go without reading its clock. It reads it with every tick of the wheel, so whoever
// reads it later than that was not running, and neither was the receipt of beats.
const tolerance = time.Second

// Keeper keeps the sessions of the shards that are held here. All methods but Run may be called by any goroutine, before and after it too.
type Keeper struct {
	cfg       Config
	exchanges chan *Exchange
	calls     chan func()
	done      chan struct{} // closed by Run when it returns
	life      uint64        // told apart from all other Keepers by chance
	shortest  time.Duration // silence that makes a holder of any class suspect
	counts    counts
	pulses    *session.Pulses
	face      atomic.Pointer[stopwatch.Face] // nil before Run
	roster    atomic.Pointer[roster]
	reign     atomic.Pointer[reign] // nil while no shard is kept
	backlog   atomic.Pointer[writeback.Backlog]

	// What follows belongs to the goroutine in Run.
	clock    stopwatch.Watch
	table    *session.Table
	kept     []*tenure.Tenure    // by shard; nil where the shard is not kept here
	since    []monotonic.Instant // by shard: when kept began
	leaving  []bool              // by shard: no holder is taken in any more
	surveys  surveys
	book     *writeback.Book
	shards   column.Column[uint16] // by slot
	entries  column.Column[entry]  // by slot
	changes  changes
	troubles troubles
	tenants  uint64
	ready    <-chan struct{}
	// again is ready while the last pass has left something that is due.
	again <-chan struct{}
}

// counts lets others see how many sessions there are without asking the owner.
type counts struct {
	alive, suspect, expired, blind, duplicates atomic.Int64
}

// New returns a Keeper without shards. It starts nothing.
func New(cfg Config) *Keeper {
	k := &Keeper{
		cfg:       cfg,
		exchanges: make(chan *Exchange, waiting),
		calls:     make(chan func()),
		done:      make(chan struct{}),
		life:      rand.Uint64(),
		ready:     closed(),
		kept:      make([]*tenure.Tenure, cfg.Shards),
		since:     make([]monotonic.Instant, cfg.Shards),
		leaving:   make([]bool, cfg.Shards),
		surveys:   newSurveys(),
		changes:   newChanges(),
		troubles:  newTroubles(),
	}
	policies := make([]writeback.Policy, 0, len(cfg.Classes))
	classes := make([]session.Class, 0, len(cfg.Classes))
	for _, c := range cfg.Classes {
		classes = append(classes, c.Session)
		if k.shortest == 0 || c.Session.Suspect < k.shortest {
			k.shortest = c.Session.Suspect
		}
		policies = append(policies, c.Writes)
	}
	k.table = session.NewTable(classes, cfg.Limit)
	k.pulses = k.table.Pulses()
	k.book = writeback.NewBook(policies)
	return k
}

// Run keeps the sessions until ctx ends. It may be called once.
func (k *Keeper) Run(ctx context.Context) error {
	defer close(k.done)
	k.clock = stopwatch.Start(session.Granularity, tolerance)
	k.face.Store(k.clock.Face())
	ticker := time.NewTicker(session.Granularity)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case x := <-k.exchanges:
			k.exchange(x)
		case call := <-k.calls:
			call()
		case <-ticker.C:
			k.advance()
			k.look()
		case <-k.again:
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
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Counts is how many sessions there are, as of a moment ago.
func (k *Keeper) Counts() session.Counts {
	return session.Counts{
		Alive: int(k.counts.alive.Load()), Suspect: int(k.counts.suspect.Load()), Expired: int(k.counts.expired.Load()),
	}
}

// Life tells this Keeper from all others, so that Versions of one are not taken for another's.
func (k *Keeper) Life() uint64 { return k.life }

// Duplicates is how often it was found that two boots of one holder beat.
func (k *Keeper) Duplicates() int64 { return k.counts.duplicates.Load() }

// Blind is how long in all the process could not receive.
func (k *Keeper) Blind() time.Duration { return time.Duration(k.counts.blind.Load()) }

// do has the owner run call and waits until it has. With an error from ctx, call has not run and will not.
func (k *Keeper) do(ctx context.Context, call func()) error {
	ran := make(chan struct{})
	asked := func() {
		defer close(ran)
		call()
	}
	select {
	case k.calls <- asked:
	case <-k.done:
		return ErrEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	<-ran // the owner runs a call as soon as it has taken it
	return nil
}

// Backlog is what is to be written and not under way, as of a moment ago.
func (k *Keeper) Backlog() writeback.Backlog {
	if b := k.backlog.Load(); b != nil {
		return *b
	}
	return writeback.Backlog{}
}

// look does what needs to be done now and then.
func (k *Keeper) look() {
	now := k.now()
	k.surveys.forget(now)
	if b := k.book.Backlog(now); b != k.Backlog() {
		k.backlog.Store(&b)
	}
}

func (k *Keeper) publish() {
	c := k.table.Counts()
	k.counts.alive.Store(int64(c.Alive))
	k.counts.suspect.Store(int64(c.Suspect))
	k.counts.expired.Store(int64(c.Expired))
}

// now is the receiving time. Every use of it may be the first after the process stood still, so each looks.
func (k *Keeper) now() monotonic.Instant {
	now, lost := k.clock.Read()
	if lost > 0 {
		k.counts.blind.Add(int64(lost))
		k.cfg.Logger.Warn("nothing could be received for a while; deadlines are put off by as much", "for", lost)
	}
	return now
}

func (k *Keeper) passed() {
	if k.cfg.Passed != nil {
		k.cfg.Passed()
	}
}

// advance makes transitions that are due, a share of them at a time, so that beats which only the owner can take need not
// wait until a whole fleet has been declared silent.
func (k *Keeper) advance() {
	now := k.now()
	k.again = nil
	if k.table.Advance(now, share, func(step session.Transition) { k.turn(now, step) }) {
		k.again = k.ready
		return
	}
	k.passed()
}

func (k *Keeper) turn(now monotonic.Instant, step session.Transition) {
	slot := step.Ref.Slot()
	switch step.To {
	case session.Expired:
		k.book.Silenced(now, slot)
		k.changes.touch(slot)
	case session.Gone:
		k.vacate(slot, step.Holder)
	default:
		k.changes.touch(slot)
	}
}
