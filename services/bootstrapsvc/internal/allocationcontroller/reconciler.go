package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

const (
	// changeDelay is how long changes are collected before a pass, so that a burst causes one pass.
	changeDelay = 50 * time.Millisecond
	// period is the longest time between passes. A period longer than GracePeriods.Interval would
	// delay the observations of what is unused.
	period = 20 * time.Second
	// passTimeout bounds a pass, so that a call that hangs cannot stop the loop.
	passTimeout = 30 * time.Second
	// passBackoffMin and passBackoffMax bound the pause after a pass that failed. The pause doubles
	// with each failure.
	passBackoffMin, passBackoffMax = time.Second, 20 * time.Second
	// maxDoublings bounds the doubling of a pause: far beyond every maximum, far from overflow.
	maxDoublings = 10
	// reportFailuresAfter is how long passes may fail before the error says for how long they have.
	reportFailuresAfter = time.Minute
	// maxConfirm bounds how many findings one pass confirms by live reads. The grace periods of the
	// others restart.
	maxConfirm = 100
)

// reconciler runs the controller for one term. Only the goroutine of Controller.Run uses it;
// watches send to that goroutine.
type reconciler struct {
	*Controller
	ctx    context.Context
	cancel context.CancelFunc

	stores   []allocation.Store
	index    *allocation.Index
	watches  *watches
	ranges   rangeIdentity
	findings *findingCache
	repairs  *repairs
	plans    plans
	// ignoresOutdated reports that the store may have other marks than are known here.
	ignoresOutdated bool

	// stop reports whether the repair that is being applied must not start another step.
	stop func() bool

	// nextPass is when the next pass is made. After a failed pass, it is not before notBefore.
	nextPass, notBefore time.Time
	failures            int
	failingSince        time.Time

	storeStates     []allocation.StoreState
	compareDuration time.Duration
	compareTime     time.Time
	// watch serves watches of the findings of this term.
	watch *watchcache.Cache[allocation.Finding]
}

func newReconciler(ctx context.Context, c *Controller, stores []allocation.Store) *reconciler {
	ctx, cancel := context.WithCancel(ctx)
	return &reconciler{
		Controller: c, ctx: ctx, cancel: cancel, stores: stores,
		index: allocation.NewIndex(allocation.Settings{
			Stores: stores, Ranges: c.ExpectedRanges, GracePeriods: c.GracePeriods,
		}),
		watches: newWatches(stores), ranges: newRangeIdentity(),
		findings: newFindingCache(c.FindingHistory), repairs: newRepairs(c.RepairHistory),
		nextPass: time.Now().Add(changeDelay), failingSince: time.Now(), watch: newFindingWatch(),
		stop: func() bool { return false },
	}
}

// close stops the watches and drops the snapshot.
func (r *reconciler) close() {
	r.cancel()
	r.watches.running.Wait()
	r.published.drop(errors.New("the term has ended"))
	r.published.problems.Store(nil)
}

// pass makes a pass and schedules the next one. Its error also reports repairs that wait for a
// retry. These do not delay the next pass.
func (r *reconciler) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	blocking := r.reconcile(ctx, time.Now())
	err := errors.Join(blocking, r.repairs.retryErr())
	if err != nil {
		if failing := time.Since(r.failingSince); failing > reportFailuresAfter {
			err = fmt.Errorf("no pass has succeeded for %s: %w", failing.Round(time.Second), err)
		}
		if r.published.snapshot.Load() == nil {
			r.published.drop(err)
		}
	}
	r.Reporter.PassFinished(r.compareDuration, r.published.snapshot.Load(), err)
	now := time.Now()
	if err == nil {
		r.failingSince = now
	}
	r.publishProblems(now, err)
	r.schedule(now, blocking)
	return err
}

// reconcile compares, repairs, stores and publishes.
func (r *reconciler) reconcile(ctx context.Context, now time.Time) error {
	if err := r.watches.listErr(); err != nil {
		return err
	}
	if err := r.verifyRanges(ctx, now); err != nil {
		return err
	}
	err := r.compare(ctx, now)
	r.findings.expireIgnores(now)
	if err == nil {
		err = r.repair(ctx, now)
	}
	// A pass with a failed write or a broken watch is no observation: another writer may be about
	// to use what looks unused.
	if err == nil && r.repairs.idle() && r.watches.err() == nil {
		r.index.Observe(now)
	}
	r.publish()
	for _, store := range []func() error{
		func() error { return r.storeFindings(ctx) }, func() error { return r.prunePlans(ctx, now) },
	} {
		if stored := store(); err == nil {
			err = stored
		}
	}
	return err
}

// schedule sets the time of the next pass after one that ended now. err is the error that the next
// pass must back off from.
func (r *reconciler) schedule(now time.Time, err error) {
	r.nextPass, r.notBefore = now.Add(period), time.Time{}
	if err != nil {
		r.notBefore = now.Add(min(passBackoffMax, passBackoffMin<<min(r.failures, maxDoublings)))
		r.failures++
		r.requestPass(now)
		return
	}
	r.failures = 0
	if next := r.index.NextDue(); !next.IsZero() {
		r.requestPass(next)
	}
	if r.ranges.problem != "" {
		r.requestPass(now.Add(verifyInterval))
	}
	if next := r.findings.nextIgnoreExpiry(); !next.IsZero() {
		r.requestPass(next)
	}
	if next, ok := r.nextRepair(); ok {
		r.requestPass(next)
	}
}

// requestPass moves the next pass to a time, if it is earlier and not before notBefore.
func (r *reconciler) requestPass(at time.Time) {
	if at.Before(r.notBefore) {
		at = r.notBefore
	}
	if at.Before(r.nextPass) {
		r.nextPass = at
	}
}

// compare compares what is used with what is allocated, and updates the findings. After an error,
// findings that could not be confirmed are still pending; all others are updated.
func (r *reconciler) compare(ctx context.Context, now time.Time) error {
	if err := r.watches.listErr(); err != nil {
		return err
	}
	begun := time.Now()
	delta := r.index.Compare(now)
	r.compareDuration = time.Since(begun)
	rejected, err := r.confirm(ctx, r.stepsToConfirm(delta.Changed))
	deltas := []allocation.Delta{delta}
	if len(rejected) > 0 {
		for name := range rejected {
			r.index.RestartGracePeriod(name)
		}
		deltas[0].Changed = slices.DeleteFunc(delta.Changed, func(f allocation.Finding) bool { return rejected.has(f.Name) })
		deltas = append(deltas, r.index.Compare(now))
	}
	r.compareTime, r.storeStates = now, r.index.StoreStates()
	for _, delta := range deltas {
		for _, opened := range r.findings.update(delta, now) {
			r.Reporter.FindingOpened(opened)
		}
	}
	return err
}

// stepsToConfirm returns the first steps of the findings that open now and that watches out of step
// could have caused. A finding about an unused subject has a long grace period, and is read live
// before it is freed.
func (r *reconciler) stepsToConfirm(changed []allocation.Finding) []allocation.Step {
	var steps []allocation.Step
	for _, finding := range changed {
		before := r.findings.current[finding.Name]
		opens := finding.State == allocation.StateOpen && (before == nil || before.State != allocation.StateOpen)
		if opens && len(finding.Steps) > 0 && !finding.Steps[0].Frees() {
			steps = append(steps, finding.Steps[0])
		}
	}
	return steps
}

// confirm returns the findings whose step could not be applied now. It reads what a step would
// write before the Services: a Service that used the subject all the time, as the index saw, and
// still does, has lost it. After an error, it returns all unconfirmed findings.
func (r *reconciler) confirm(ctx context.Context, steps []allocation.Step) (rejected set, err error) {
	rejected = set{}
	for _, step := range steps {
		rejected[step.Finding] = struct{}{}
	}
	for steps = sample(steps); len(steps) > 0; {
		batch := steps[:batchLength(steps)]
		var live liveBatch
		if err := r.readTargets(ctx, batch, &live); err != nil {
			return rejected, err
		}
		if err := r.readUsers(ctx, batch, &live); err != nil {
			return rejected, err
		}
		for _, step := range batch {
			if result, _ := allocation.Check(step, live.of(step)); result == allocation.CheckPassed {
				delete(rejected, step.Finding)
			}
		}
		steps = steps[len(batch):]
	}
	return rejected, nil
}

// sample returns at most maxConfirm steps, chosen at random: findings that are rejected each time
// must not hide the others.
func sample(steps []allocation.Step) []allocation.Step {
	if len(steps) <= maxConfirm {
		return steps
	}
	rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	steps = steps[:maxConfirm]
	slices.SortFunc(steps, func(a, b allocation.Step) int { return strings.Compare(a.Finding, b.Finding) })
	return steps
}

// storeFindings writes changed findings to the store, and deletes the marks of those that ended.
// After an error, the next pass writes them.
func (r *reconciler) storeFindings(ctx context.Context) error {
	if findings, deleted := r.findings.toStore(); len(findings)+len(deleted) > 0 {
		if err := r.RepairStore.WriteFindings(ctx, findings, deleted); err != nil {
			return err
		}
		r.findings.markStored()
	}
	return r.storeIgnores(ctx)
}

// publish publishes a snapshot and returns it, and then sends the changes to watches. A watch that
// resumes at the token of a list therefore misses nothing.
func (r *reconciler) publish() *Snapshot {
	snapshot := &Snapshot{
		Stores: r.storeStates, CompareDuration: r.compareDuration, CompareTime: r.compareTime,
		Watch: r.watch, heard: r.watches.heard,
	}
	previous := r.published.snapshot.Load()
	changed, left := r.findings.refresh(r.index)
	if previous != nil && !changed {
		snapshot.Current, snapshot.Ended = previous.Current, previous.Ended
		r.published.snapshot.Store(snapshot)
		return snapshot
	}
	snapshot.Current, snapshot.Ended = r.findings.listCurrent(), r.findings.listEnded()
	r.published.snapshot.Store(snapshot)
	r.watch.Delete(r.findings.forgotten(left)...)
	r.watch.Replace(slices.Concat(snapshot.Current, snapshot.Ended))
	return snapshot
}
