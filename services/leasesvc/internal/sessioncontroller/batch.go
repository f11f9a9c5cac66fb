package sessioncontroller

import (
	"context"
	"slices"
	"time"
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Batch is one message with beats and its results. A connection reuses one Batch: the slices of the
// results are valid until the next Process.
type Batch struct {
	// Registrations are beats by name. They open, take over or renew sessions.
	Registrations []Registration
	// Refs are beats by reference. They renew sessions.
	Refs []session.Ref
	// Reports belong to beats in Refs, in the order of Refs.
	Reports []BeatReport
	// Sequence is the sequence of the beats in Refs.
	Sequence uint64
	// Unordered says that the message may be late or repeated. Sequences of Registrations are then
	// compared.
	Unordered bool
	// Forwarded says that another replica received the beats. They open no session of a boot that
	// was released meanwhile.
	Forwarded bool
	// Admit returns whether the admission rate allows one more registration of a boot that has no
	// session; the result is then Deferred. It must not block. nil allows all.
	Admit func() bool

	// Results are those of Registrations, in the same order.
	Results []RegisterResult
	// Rejected are the Refs that were not renewed.
	Rejected []RejectedBeat
	// Grant is the merged grant of the renewed Refs, see Grant.Min.
	Grant Grant
	// Renewed is the number of renewed Refs.
	Renewed int

	processed chan struct{}
}

// Registration is a beat by name.
type Registration struct {
	Holder   session.Holder
	Shard    int
	Sequence uint64
	// Deferred says that the admission rate does not allow this registration now. An existing
	// session is renewed all the same.
	Deferred bool
	// Age is the time since another replica received the beat that it forwarded.
	Age time.Duration
	// Report is nil if the holder was observed just now.
	Report *Report
	// Agent describes the program that sends the beat; the zero Agent is not known.
	Agent session.Agent
	// Owner counts as the owner of the session if the registration opens it; see
	// Config.SessionsPerOwner. Empty for none.
	Owner string
}

// BeatReport is the report of a beat by reference.
type BeatReport struct {
	// Index is the index in Batch.Refs.
	Index int
	Report
}

// Grant is what a holder gets for a beat.
type Grant struct {
	// Interval is the time until the next beat, TTL that until the session expires.
	Interval, TTL time.Duration
	// Epoch is the epoch of the term that accepted the beat.
	Epoch int64
}

// Min returns a grant that two holders of one message can both use: the shorter times and the newer
// epoch. The zero Grant stands for none.
func (g Grant) Min(other Grant) Grant {
	if g == (Grant{}) {
		return other
	}
	return Grant{Interval: min(g.Interval, other.Interval), TTL: min(g.TTL, other.TTL), Epoch: max(g.Epoch, other.Epoch)}
}

// RegisterResult is the result of a Registration. Ref, Name and both grants are set if the outcome
// is accepted.
type RegisterResult struct {
	// NotHeld means that the shard is not held here. No other field is set.
	NotHeld bool
	// Deferred repeats Registration.Deferred. No other field is set.
	Deferred bool
	// OwnerFull means that the owner may open no further session. No other field is set.
	OwnerFull bool
	Outcome   session.Outcome
	// RetryAfter is when a Superseded holder may try again.
	RetryAfter time.Duration
	Ref        session.Ref
	// Name is the name as the string that the session keeps. Reuse this string; do not copy it.
	Name  string
	Grant Grant
	// BeatGrant is the grant of the beats that follow.
	BeatGrant Grant
}

// RejectedBeat is a Ref that was not renewed.
type RejectedBeat struct {
	// Index is the index in Batch.Refs.
	Index   int
	Outcome session.Outcome
	// RetryAfter is when a Superseded holder may try again.
	RetryAfter time.Duration
}

// NewBatch returns an empty Batch.
func NewBatch() *Batch { return &Batch{processed: make(chan struct{}, 1)} }

// Now returns the time for Beat. It is false before Run.
func (c *Controller) Now() (monotonic.Instant, bool) {
	reader := c.clockReader.Load()
	if reader == nil {
		return 0, false
	}
	return reader.Now(), true
}

// Beat renews an Alive session at a time that Now has just returned. If it returns false, the beat
// must go through Process. Nearly all heartbeats take this path: it neither blocks nor allocates.
func (c *Controller) Beat(now monotonic.Instant, ref session.Ref, sequence uint64) bool {
	return c.heartbeats.Beat(now, ref, sequence)
}

// LastBeat returns the time of the last beat on the clock of Now. It is false if the Ref is
// invalid. It does not block.
func (c *Controller) LastBeat(ref session.Ref) (monotonic.Instant, bool) {
	return c.heartbeats.LastBeat(ref)
}

// Process lets the owner process the batch and waits for the results in it. It fails if the results
// may not be those of the leader of the shards; see CheckTerms. After an error the batch must not
// be used again, because the owner may still work on it.
func (c *Controller) Process(ctx context.Context, b *Batch) error {
	select {
	case c.batches <- b:
	case <-c.done:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-b.processed:
		if !b.accepted() {
			return nil
		}
		return c.CheckTerms()
	case <-c.done:
		return ErrStopped
	}
}

// accepted returns whether a beat was accepted.
func (b *Batch) accepted() bool {
	return b.Renewed > 0 || slices.ContainsFunc(b.Results, func(r RegisterResult) bool { return r.Grant != (Grant{}) })
}

func (c *Controller) process(b *Batch) {
	now := c.now()
	b.Results, b.Rejected, b.Grant, b.Renewed = b.Results[:0], b.Rejected[:0], Grant{}, 0
	for i := range b.Registrations {
		b.Results = append(b.Results, c.register(now, b, &b.Registrations[i]))
	}
	reports := b.Reports
	for i, ref := range b.Refs {
		var report *Report
		if len(reports) > 0 && reports[0].Index == i {
			report, reports = &reports[0].Report, reports[1:]
		}
		c.renew(now, b, i, ref, report)
	}
	b.processed <- struct{}{}
}

func (c *Controller) register(now monotonic.Instant, b *Batch, r *Registration) RegisterResult {
	if !c.accepts(r.Shard) {
		return RegisterResult{NotHeld: true}
	}
	class := &c.cfg.Classes[r.Holder.Key.Class].Session
	received := now.Add(-r.Age)
	observed := observed(received, r.Report)
	if r.Deferred {
		c.renewDeferred(now, observed, r)
		return RegisterResult{Deferred: true}
	}
	if _, known := c.table.Get(r.Holder.Key); !known && c.owners.full(r.Owner) {
		return RegisterResult{OwnerFull: true}
	}
	if b.Admit != nil && !c.isRenewal(r.Holder) && !b.Admit() {
		return RegisterResult{Deferred: true}
	}
	if b.Forwarded && c.released.has(now, r.Holder) && !c.isRenewal(r.Holder) {
		return RegisterResult{Outcome: session.Unknown}
	}
	ref, outcome := c.table.Register(session.Registration{
		Holder: r.Holder, Sequence: r.Sequence, Received: received, Observed: observed, IfNewer: b.Unordered,
	})
	if !outcome.Accepted() {
		result := RegisterResult{Outcome: outcome}
		if outcome == session.Superseded {
			c.reportDuplicate(now, ref)
			result.RetryAfter = c.supersededFor(now, ref)
		}
		return result
	}
	slot := ref.Slot()
	if outcome == session.Opened {
		c.openSlot(now, slot, r.Holder.Key, r.Shard)
		c.owners.add(slot, r.Owner)
	}
	result := RegisterResult{Outcome: outcome, Ref: ref, Name: c.table.Name(slot), Grant: c.grant(slot), BeatGrant: c.grant(slot)}
	if outcome == session.Repeated || observed < now {
		result.Grant.TTL = c.remainingTTL(now, ref)
	}
	if outcome == session.Repeated {
		return result
	}
	if outcome == session.TookOver {
		c.reports.remove(slot)
		delete(c.reporters.heard, slot)
		*c.observed.At(slot), *c.agents.At(slot) = false, unique.Handle[session.Agent]{}
		c.reportReturn(ref, r.Holder)
	}
	changed := false
	if !b.Forwarded || *c.agents.At(slot) == (unique.Handle[session.Agent]{}) { // the agent itself says more
		changed = c.updateAgent(slot, r.Agent)
	}
	c.leaveToKubelet(now, slot, r.Holder.Key)
	changed = c.updateReport(slot, received, r.Report) || changed
	changed = c.updateReporter(slot, received) || changed
	c.sessionChanged(now, slot, outcome, changed)
	if !b.Unordered || outcome != session.Renewed {
		// All holders of a message get the interval of the first one, so that they keep beating in
		// one message.
		result.Grant.Interval = class.FirstInterval(b.Registrations[0].Holder.Key.Name)
	}
	return result
}

// isRenewal reports whether the boot has a session.
func (c *Controller) isRenewal(h session.Holder) bool {
	_, outcome := c.table.Find(h)
	return outcome == session.Renewed
}

// renewDeferred renews the session of a deferred registration, if there is one. A holder must not
// expire because it waits for admission.
func (c *Controller) renewDeferred(now, observed monotonic.Instant, r *Registration) {
	ref, outcome := c.table.Find(r.Holder)
	if outcome != session.Renewed {
		return
	}
	outcome = c.table.Beat(now, observed, ref, r.Sequence)
	changed := c.updateReport(ref.Slot(), now.Add(-r.Age), r.Report)
	c.sessionChanged(now, ref.Slot(), outcome, c.updateReporter(ref.Slot(), now.Add(-r.Age)) || changed)
}

// renew takes a beat that Beat has not taken.
func (c *Controller) renew(now monotonic.Instant, b *Batch, index int, ref session.Ref, report *Report) {
	observed := observed(now, report)
	outcome := c.table.Beat(now, observed, ref, b.Sequence)
	if !outcome.Accepted() {
		rejected := RejectedBeat{Index: index, Outcome: outcome}
		if outcome == session.Superseded {
			c.reportDuplicate(now, ref)
			rejected.RetryAfter = c.supersededFor(now, ref)
		}
		b.Rejected = append(b.Rejected, rejected)
		return
	}
	slot := ref.Slot()
	grant := c.grant(slot)
	if observed < now {
		grant.TTL = c.remainingTTL(now, ref)
	}
	b.Renewed++
	b.Grant = b.Grant.Min(grant)
	changed := c.updateReport(slot, now, report)
	c.sessionChanged(now, slot, outcome, c.updateReporter(slot, now) || changed)
}

// sessionChanged updates the schedule and the watchers after an accepted beat. A session that was
// not recovered may still be expired, because its holder was observed long ago.
func (c *Controller) sessionChanged(now monotonic.Instant, slot uint32, outcome session.Outcome, reportChanged bool) {
	if outcome == session.Renewed {
		if reportChanged {
			c.changes.touch(slot)
		}
		return
	}
	if s, _ := c.table.At(slot); s.State == session.Expired {
		c.writes.HolderExpired(now, slot)
	} else {
		c.writes.HolderRecovered(now, slot)
	}
	c.changes.touch(slot)
}

// openSlot begins the writes of a new session.
func (c *Controller) openSlot(now monotonic.Instant, slot uint32, key session.Key, shard int) {
	c.shards.Extend(int(slot) + 1)
	c.entries.Extend(int(slot) + 1)
	c.observed.Extend(int(slot) + 1)
	c.agents.Extend(int(slot) + 1)
	c.occupancies++
	c.writes.Open(now, slot, writeback.SlotOptions{
		Policy: uint8(key.Class), Phase: writeback.Phase(key.Name), Wait: c.adoptions.writeDelay(c.held[shard], now),
	})
	*c.shards.At(slot) = uint16(shard)
	*c.entries.At(slot) = leaseEntry{occupancy: c.occupancies}
	c.adoptUnclaimed(now, slot, key)
}

// remainingTTL returns the time until the session expires. Times of beats are rounded up, so the
// TTL is its maximum.
func (c *Controller) remainingTTL(now monotonic.Instant, ref session.Ref) time.Duration {
	s, _ := c.table.Lookup(ref)
	return min(max(s.Deadline.Sub(now), 0), c.cfg.Classes[s.Holder.Key.Class].Session.TTL)
}

func (c *Controller) grant(slot uint32) Grant {
	class := &c.cfg.Classes[c.writes.Policy(slot)].Session
	return Grant{Interval: class.Interval, TTL: class.TTL, Epoch: c.epoch(slot)}
}

// owners count the sessions that an identity has opened here, of classes whose sessions have such a
// bound. A session counts until it is gone; later beats of others change nothing.
type owners struct {
	limit  int
	bySlot map[uint32]string
	counts map[string]int
}

func newOwners(limit int) owners {
	return owners{limit: limit, bySlot: map[uint32]string{}, counts: map[string]int{}}
}

// full says whether an owner may open no further session. The empty owner always may.
func (o *owners) full(owner string) bool { return owner != "" && o.counts[owner] >= o.limit }

func (o *owners) add(slot uint32, owner string) {
	if owner != "" {
		o.bySlot[slot] = owner
		o.counts[owner]++
	}
}

func (o *owners) remove(slot uint32) {
	owner, owned := o.bySlot[slot]
	if !owned {
		return
	}
	delete(o.bySlot, slot)
	if o.counts[owner]--; o.counts[owner] == 0 {
		delete(o.counts, owner)
	}
}
