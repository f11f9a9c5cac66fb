package sessioncontroller

import (
	"context"
	"errors"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrNoOwner says that an object was not written because there is nobody whom it could belong to.
var ErrNoOwner = errors.New("nobody owns the lease")

// Job is one object to write. Who gets it asks Begin, and gives it to Finish once, whatever happened.
type WriteJob struct {
	// Tenure is that of the holder's shard.
	Shard           *heldshards.Shard
	Namespace, Name string
	// Class is the name of the holder's class if its Leases belong to no Node; empty if they do.
	Class    string
	Duration time.Duration
	Reason   writeback.Reason
	// RenewTime is when the holder was last heard, by the wall clock.
	RenewTime time.Time
	// Lapsed is set for a holder that has expired, and to then: its object shall say so.
	ExpireTime time.Time
	// Last is the object as last written, or found, in this term.
	Last writeback.LeaseRecord

	occupancy uint64
	write     writeback.Write
}

// Begin is called before the write. With ok, the write is made with ctx, which carries the term of the holder's shard, and
// end called when it has returned: the term is not given up before. Without, the term is over and nothing may be written.
func (j *WriteJob) BeginWrite() (ctx context.Context, end func(), ok bool) {
	return j.Shard.BeginWrite()
}

// Result is what came of a Job.
type WriteResult struct {
	// Lease is the object as written; only without an error.
	Lease writeback.LeaseRecord
	// Err is nil, wraps ErrNoOwner, or is another failure.
	Err error
	// Pause is how long the kube-apiserver asked to be left alone after a failure; 0 when it did not.
	Pause time.Duration
}

// Start returns at most budget objects that are to be written now, the most urgent first. None of them is handed out again
// before its Finish.
func (k *Controller) StartWrites(ctx context.Context, budget int) (jobs []WriteJob, err error) {
	err = k.do(ctx, func() {
		now := k.now()
		for _, w := range k.writes.Start(now, k.lastBeat, budget) {
			jobs = append(jobs, k.newJob(now, w))
		}
	})
	return jobs, err
}

func (k *Controller) lastBeat(slot uint32) monotonic.Instant {
	return k.table.LastBeat(slot)
}

func (k *Controller) newJob(now monotonic.Instant, w writeback.Write) WriteJob {
	s, _ := k.table.At(w.Slot)
	class := &k.cfg.Classes[s.Holder.Key.Class]
	job := WriteJob{
		Shard:     k.held[*k.shards.At(w.Slot)],
		Namespace: class.Namespace, Name: s.Holder.Key.Name, Duration: class.Writes.Duration, Reason: w.Reason,
		RenewTime: k.clock.Wall(now, w.Beat), Last: k.entries.At(w.Slot).lease,
		occupancy: k.entries.At(w.Slot).occupancy, write: w,
	}
	if class.Unowned {
		job.Class = class.Session.Name
	}
	if w.Reason == writeback.Expired {
		job.ExpireTime = k.clock.Wall(now, min(s.Deadline, now))
	}
	return job
}

// Finish takes what came of a Job, and forgets it if the holder or its shard is not kept any more. ErrEnded says that nothing is.
func (k *Controller) FinishWrite(job WriteJob, result WriteResult) error {
	return k.do(context.Background(), func() { k.finishWrite(job, result) })
}

func (k *Controller) finishWrite(job WriteJob, result WriteResult) {
	slot := job.write.Slot
	e := k.entries.At(slot)
	if e.occupancy != job.occupancy {
		return // the holder was forgotten, or its shard lost, while its object was written
	}
	switch now := k.now(); {
	case result.Err == nil:
		k.writes.Succeeded(now, job.write)
		e.lease, e.writeTime = result.Lease, time.Now().UnixNano()
		delete(k.exceptions.errors, slot)
	case errors.Is(result.Err, ErrNoOwner):
		k.writes.NoOwner(now, job.write)
		delete(k.exceptions.errors, slot) // the state says it, for as many as there are
	default:
		k.writes.Failed(now, job.write, result.Pause)
		k.exceptions.errors[slot] = result.Err.Error()
	}
	k.exceptions.notifyIdle(slot)
	k.changes.touch(slot)
}
