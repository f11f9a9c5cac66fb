package sessioncontroller

import (
	"context"
	"errors"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

var (
	// ErrNoOwner reports a Lease that was not written because the Node that must own it does not
	// exist.
	ErrNoOwner = errors.New("the Node that owns the Lease does not exist")
	// ErrSuperseded means that a boot was rejected because another boot has the session.
	ErrSuperseded = errors.New("another boot of the holder has the lease")
	// ErrETagMismatch means that a session is not the one whose etag the caller has read.
	ErrETagMismatch = errors.New("the lease has changed since its etag was read")
)

// WriteJob is one Lease to write. The write is made under the term of Shard. The caller calls
// FinishWrite in any case.
type WriteJob struct {
	// LeaseUpdate is what the Lease must show. Its Last is the Lease as it was last written or
	// adopted in this term.
	writeback.LeaseUpdate
	// Shard is the holder's shard.
	Shard  *HeldShard
	Reason writeback.Reason

	occupancy uint64
	write     writeback.Write
}

// WriteResult is the result of a WriteJob.
type WriteResult struct {
	// Lease is the Lease after the write. It is not used if Err is set.
	Lease writeback.LeaseRecord
	// Err may wrap ErrNoOwner.
	Err error
	// Pause is the pause that the kube-apiserver asked for; 0 for none.
	Pause time.Duration
}

// StartWrites returns at most limit due Leases, the most urgent first. A Lease is not returned
// again before FinishWrite.
func (c *Controller) StartWrites(ctx context.Context, limit int) (jobs []WriteJob, err error) {
	err = c.do(ctx, func() {
		now := c.now()
		for _, w := range c.writes.Start(now, c.table.LastBeat, limit) {
			jobs = append(jobs, c.newJob(now, w))
		}
	})
	return jobs, err
}

func (c *Controller) newJob(now monotonic.Instant, w writeback.Write) WriteJob {
	s, _ := c.table.At(w.Slot)
	class, e := &c.cfg.Classes[s.Holder.Key.Class], c.entries.At(w.Slot)
	job := WriteJob{
		LeaseUpdate: writeback.LeaseUpdate{
			Namespace: class.Namespace, Name: s.Holder.Key.Name, Duration: class.Writes.Duration,
			RenewTime: c.clock.WallTime(now, w.Beat), Last: e.lease,
		},
		Shard: c.held[*c.shards.At(w.Slot)], Reason: w.Reason, occupancy: e.occupancy, write: w,
	}
	if class.Unowned {
		job.Class = class.Session.Name
	}
	if w.Reason == writeback.Expired {
		job.ExpireTime = c.clock.WallTime(now, min(s.Deadline, now))
		if e.writeTime == 0 {
			job.Last = writeback.LeaseRecord{} // another program may have renewed the Lease that was adopted
		}
	}
	return job
}

// FinishWrite takes the result of a job. It drops the result if the session is gone.
func (c *Controller) FinishWrite(job WriteJob, result WriteResult) error {
	return c.do(context.Background(), func() { c.finishWrite(job, result) })
}

func (c *Controller) finishWrite(job WriteJob, result WriteResult) {
	slot := job.write.Slot
	e := c.entries.At(slot)
	if e.occupancy != job.occupancy {
		return // the session is gone
	}
	switch now := c.now(); {
	case result.Err == nil:
		c.writes.Succeeded(now, job.write)
		e.lease, e.writeTime = result.Lease, time.Now().UnixNano()
		delete(c.exceptions.errors, slot)
		c.problemSlots.written(slot)
	case errors.Is(result.Err, ErrNoOwner):
		c.writes.NoOwner(now, job.write)
		delete(c.exceptions.errors, slot) // writeback.NoOwner says the same
		c.problemSlots.written(slot)
		c.problemSlots.unowned.add(slot)
	default:
		c.writes.Failed(now, job.write, result.Pause)
		c.exceptions.errors[slot] = result.Err.Error()
		if c.writes.Status(slot).Failures >= problemFailures {
			c.problemSlots.unwritten.add(slot)
		}
	}
	c.exceptions.notifyIdle(slot)
	c.changes.touch(slot)
}

// Release is the release of a session in progress. Its Lease is not written meanwhile, so that it
// can be deleted. The caller calls AbortRelease or CompleteRelease once.
type Release struct {
	Namespace, Name string
	// Shard is the holder's shard. The Lease is deleted under its term.
	Shard *HeldShard

	holder    session.Holder
	slot      uint32
	occupancy uint64
}

// CheckRelease returns the error with which BeginRelease would fail now; nil also if there is no
// session.
func (c *Controller) CheckRelease(ctx context.Context, h session.Holder, shard int, etag string) error {
	var failure error
	err := c.do(ctx, func() { _, _, failure = c.findRelease(h, shard, etag) })
	return errors.Join(err, failure)
}

// BeginRelease waits until no write of the holder's Lease is in flight and prevents new ones. It
// returns nil if there is no session. It fails with a NotHeldError if the shard is not held, with
// ErrSuperseded if another boot has the session, and with ErrETagMismatch if the session has
// another etag; an empty etag stands for any.
func (c *Controller) BeginRelease(ctx context.Context, h session.Holder, shard int, etag string) (*Release, error) {
	for {
		var (
			release *Release
			busy    <-chan struct{}
			failure error
		)
		if err := c.do(ctx, func() { release, busy, failure = c.beginRelease(h, shard, etag) }); err != nil {
			return nil, err
		}
		if busy == nil {
			return release, failure
		}
		select {
		case <-busy:
		case <-c.done:
			return nil, ErrStopped
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (c *Controller) beginRelease(h session.Holder, shard int, etag string) (*Release, <-chan struct{}, error) {
	slot, found, err := c.findRelease(h, shard, etag)
	switch {
	case err != nil:
		return nil, nil, err
	case !found:
		c.released.add(c.now(), h)
		return nil, nil, nil
	}
	if c.writes.Busy(slot) {
		return nil, c.exceptions.waitIdle(slot), nil
	}
	c.writes.Suspend(slot)
	return &Release{
		Namespace: c.cfg.Classes[h.Key.Class].Namespace, Name: h.Key.Name,
		Shard: c.held[shard], holder: h, slot: slot, occupancy: c.entries.At(slot).occupancy,
	}, nil, nil
}

// findRelease returns the slot of the session to release; false if there is none.
func (c *Controller) findRelease(h session.Holder, shard int, etag string) (slot uint32, found bool, err error) {
	if !c.accepts(shard) {
		return 0, false, NotHeldError{Shard: shard}
	}
	ref, outcome := c.table.Find(h)
	switch outcome {
	case session.Unknown:
		return 0, false, nil
	case session.Superseded:
		return 0, false, ErrSuperseded
	}
	lease := Lease{Holder: h, Epoch: c.epoch(ref.Slot())}
	if etag != "" && etag != lease.ETag() {
		return 0, false, ErrETagMismatch
	}
	return ref.Slot(), true, nil
}

// AbortRelease keeps the session, because its Lease was not deleted.
func (c *Controller) AbortRelease(r *Release) {
	c.endRelease(r, func() { c.writes.Resume(c.now(), r.slot) })
}

// CompleteRelease ends the session after its Lease was deleted, or is to stay. If another boot took
// the session over meanwhile, the session continues and gets a new Lease.
func (c *Controller) CompleteRelease(r *Release) {
	c.endRelease(r, func() {
		if _, outcome := c.table.Release(r.holder); outcome == session.Renewed {
			c.released.add(c.now(), r.holder)
			c.sessionGone(r.slot, r.holder)
			return
		}
		c.reopenSlot(r)
		c.changes.touch(r.slot)
	})
}

// reopenSlot plans a new Lease for a session that continues.
func (c *Controller) reopenSlot(r *Release) {
	now := c.now()
	c.writes.Open(now, r.slot, writeback.SlotOptions{
		Policy: c.writes.Policy(r.slot), Phase: writeback.Phase(r.holder.Key.Name),
	})
	if s, _ := c.table.At(r.slot); s.State == session.Expired {
		c.writes.HolderExpired(now, r.slot)
	}
	c.leaveToKubelet(now, r.slot, r.holder.Key)
	delete(c.exceptions.errors, r.slot)
	c.problemSlots.written(r.slot)
	*c.entries.At(r.slot) = leaseEntry{occupancy: r.occupancy}
}

func (c *Controller) endRelease(r *Release, end func()) {
	// The only error is ErrStopped; all sessions are gone then.
	_ = c.do(context.Background(), func() {
		if c.entries.At(r.slot).occupancy != r.occupancy {
			return // the session is gone
		}
		end()
		c.exceptions.notifyIdle(r.slot)
	})
}
