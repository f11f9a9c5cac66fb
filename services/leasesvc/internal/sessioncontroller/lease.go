package sessioncontroller

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"time"
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Lease is a copy of a session and the state of its Lease object. Times are those of the wall
// clock.
type Lease struct {
	Holder session.Holder
	State  session.State
	// Epoch is the epoch of the term that has the session.
	Epoch       int64
	Sequence    uint64
	StartTime   time.Time
	ObserveTime time.Time
	// LastReportTime is when the agent of the holder was last heard; zero if that is ObserveTime.
	LastReportTime time.Time
	// Observed says that the agent observes the holder: a beat of this boot said when it was last
	// observed. Otherwise a beat proves that the agent lives.
	Observed bool
	// AgentLives says that beats of an Expired session arrive: its agent says that the holder is
	// silent.
	AgentLives bool
	// CutOffTime is since when every request of the holder to kube-apiserver has failed, as its
	// agent last reported; zero if they are served, or if that is not known.
	CutOffTime time.Time
	Deadline   time.Time
	Shard      int
	// Duplicate is a rejected boot of the holder that also beats; nil if there is none.
	Duplicate *Duplicate
	Write     WriteStatus
	// Conditions are those that the agent last reported, ordered by type.
	Conditions []Condition
	// Agent registered the holder.
	Agent session.Agent
}

// ETag changes with the boot and the term of the lease.
func (l *Lease) ETag() string {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s", l.Epoch, l.Holder.Boot)
	return strconv.FormatUint(hash.Sum64(), 16)
}

// AgentHeard returns when the agent of the holder was last heard.
func (l *Lease) AgentHeard() time.Time {
	if l.LastReportTime.After(l.ObserveTime) {
		return l.LastReportTime
	}
	return l.ObserveTime
}

// Duplicate is a boot that is rejected because another boot has the session.
type Duplicate struct {
	Boot              string
	LastRejectionTime time.Time
	Rejections        int64
}

// WriteStatus is the state of the writes of a Lease object.
type WriteStatus struct {
	State writeback.State
	// RenewTime, ResourceVersion and WriteTime are those of the last write; zero before it.
	RenewTime       time.Time
	ResourceVersion string
	WriteTime       time.Time
	// LastError is empty if the last write succeeded.
	LastError string
	// Failures counts the failures since the last success.
	Failures int32
	// Reason is that of the next write, or else of the last one.
	Reason writeback.Reason
	// Due is when the next write may start; zero if none is planned.
	Due time.Time
}

// leaseEntry is the state of a slot's Lease object, beside the slot in the schedule.
type leaseEntry struct {
	// occupancy numbers the uses of slots. The result of a write is dropped if the slot has another
	// occupancy by then. Boots of one holder share an occupancy, because they share the object.
	occupancy uint64
	// lease is the Lease as it was last written or adopted in this term.
	lease writeback.LeaseRecord
	// writeTime is the time of the last successful write, in nanoseconds since 1970; 0 if there is
	// none.
	writeTime int64
}

// writeExceptions hold values that few slots have.
type writeExceptions struct {
	// errors are the errors of failed writes, except ErrNoOwner.
	errors map[uint32]string
	// idleWaiters are closed when a slot has no write in flight and no release.
	idleWaiters map[uint32][]chan struct{}
}

func newWriteExceptions() writeExceptions {
	return writeExceptions{errors: map[uint32]string{}, idleWaiters: map[uint32][]chan struct{}{}}
}

// waitIdle returns a channel that the next notifyIdle of the slot closes.
func (e *writeExceptions) waitIdle(slot uint32) <-chan struct{} {
	waiter := make(chan struct{})
	e.idleWaiters[slot] = append(e.idleWaiters[slot], waiter)
	return waiter
}

func (e *writeExceptions) notifyIdle(slot uint32) {
	for _, waiter := range e.idleWaiters[slot] {
		close(waiter)
	}
	delete(e.idleWaiters, slot)
}

func (c *Controller) lease(s session.Session) Lease {
	now, slot := c.now(), s.Ref.Slot()
	l := Lease{
		Holder: s.Holder, State: s.State, Epoch: c.epoch(slot), Sequence: s.Sequence, Shard: int(*c.shards.At(slot)),
		StartTime:   c.clock.WallTime(now, s.Started),
		ObserveTime: c.clock.WallTime(now, s.LastBeat),
		Deadline:    c.clock.WallTime(now, s.Deadline),
		Observed:    *c.observed.At(slot),
		Write:       c.writeStatus(now, slot),
	}
	if d, ok := c.duplicate(now, s); ok {
		l.Duplicate = &Duplicate{Boot: d.Boot, LastRejectionTime: c.clock.WallTime(now, d.Last), Rejections: d.Rejections}
	}
	_, l.AgentLives = c.reporters.heard[slot]
	if agent := *c.agents.At(slot); agent != (unique.Handle[session.Agent]{}) {
		l.Agent = agent.Value()
	}
	c.addReport(now, slot, s.LastBeat, &l)
	return l
}

func (c *Controller) writeStatus(now monotonic.Instant, slot uint32) WriteStatus {
	e, planned := c.entries.At(slot), c.writes.Status(slot)
	w := WriteStatus{
		State: planned.State, RenewTime: e.lease.RenewTime(), ResourceVersion: e.lease.ResourceVersion(),
		LastError: c.exceptions.errors[slot], Failures: planned.Failures, Reason: planned.Reason,
	}
	if planned.State == writeback.NoOwner {
		w.LastError = ErrNoOwner.Error()
	}
	if e.writeTime != 0 {
		w.WriteTime = time.Unix(0, e.writeTime)
	}
	if planned.Scheduled {
		w.Due = c.clock.WallTime(now, planned.Due)
	}
	return w
}

// sessionGone records the deletion for watchers and frees the slot.
func (c *Controller) sessionGone(slot uint32, h session.Holder) {
	e, shard := c.entries.At(slot), *c.shards.At(slot)
	c.changes.delete(deletion{slot: slot, holder: h, epoch: c.epoch(slot), shard: shard, shardLost: c.leaving[shard]})
	c.writes.Close(slot)
	c.reports.remove(slot)
	delete(c.reporters.heard, slot)
	c.owners.remove(slot)
	c.problemSlots.remove(slot)
	c.exceptions.notifyIdle(slot)
	delete(c.exceptions.errors, slot)
	*c.shards.At(slot), *e, *c.observed.At(slot) = noShard, leaseEntry{}, false
	*c.agents.At(slot) = unique.Handle[session.Agent]{}
}
