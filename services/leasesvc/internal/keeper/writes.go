package keeper

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrNoOwner says that an object was not written because there is nobody whom it could belong to.
var ErrNoOwner = errors.New("nobody owns the lease")

// Job is one object to write. Who gets it asks Begin, and gives it to Finish once, whatever happened.
type Job struct {
	// Tenure is that of the holder's shard.
	Tenure          *tenure.Tenure
	Namespace, Name string
	Duration        time.Duration
	Reason          writeback.Reason
	// RenewTime is when the holder was last heard, by the wall clock.
	RenewTime time.Time
	// Last is the object as last written in this term; nil before that.
	Last *coordinationv1.Lease

	slot    uint32
	tenant  uint64
	planned monotonic.Instant
	beat    monotonic.Instant
}

// Begin is called before the write. With ok, the write is made with ctx, which carries the term of the holder's shard, and
// end called when it has returned: the term is not given up before. Without, the term is over and nothing may be written.
func (j *Job) Begin() (ctx context.Context, end func(), ok bool) { return j.Tenure.Begin() }

// Result is what came of a Job.
type Result struct {
	// Lease is the object as written; only without an error.
	Lease *coordinationv1.Lease
	// Err is nil, wraps ErrNoOwner, or is another failure.
	Err error
	// Pause is how long the kube-apiserver asked to be left alone after a failure; 0 when it did not.
	Pause time.Duration
}

// Start returns at most budget objects that are to be written now, the most urgent first. None of them is handed out again
// before its Finish.
func (k *Keeper) Start(ctx context.Context, budget int) (jobs []Job, err error) {
	err = k.do(ctx, func() {
		now := k.now()
		for _, w := range writeback.Plan(now, k.policies, k.slots, budget) {
			jobs = append(jobs, k.start(now, w))
		}
	})
	return jobs, err
}

func (k *Keeper) start(now monotonic.Instant, w writeback.Write) Job {
	s, _ := k.table.At(w.Slot)
	class := &k.cfg.Classes[s.Holder.Key.Class]
	k.slots[w.Slot] = k.slots[w.Slot].Started()
	return Job{
		Tenure:    k.kept[k.shards[w.Slot]],
		Namespace: class.Namespace, Name: s.Holder.Key.Name, Duration: class.Writes.Duration, Reason: w.Reason,
		RenewTime: k.clock.Wall(now, w.Beat), Last: k.entries[w.Slot].object,
		slot: w.Slot, tenant: k.entries[w.Slot].tenant, planned: now, beat: w.Beat,
	}
}

// Finish takes what came of a Job, and forgets it if the holder or its shard is not kept any more. ErrEnded says that nothing is.
func (k *Keeper) Finish(job Job, result Result) error {
	return k.do(context.Background(), func() { k.finish(job, result) })
}

func (k *Keeper) finish(job Job, result Result) {
	e := &k.entries[job.slot]
	if e.tenant != job.tenant {
		return // the holder was forgotten, or its shard lost, while its object was written
	}
	slot := &k.slots[job.slot]
	switch {
	case result.Err == nil:
		*slot = slot.Succeeded(job.planned, job.beat, k.policies[slot.Policy])
		e.object, e.writeTime, e.lastError = result.Lease, time.Now(), ""
	case errors.Is(result.Err, ErrNoOwner):
		*slot = slot.Ownerless(k.now())
		e.lastError = result.Err.Error()
	default:
		*slot = slot.Failed(k.now(), result.Pause)
		e.lastError = result.Err.Error()
	}
	e.wake()
	k.announce(Modified, job.slot)
}
