package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

const (
	// changeDelay is how long changes are collected before a pass, so that a burst causes one pass.
	changeDelay = 50 * time.Millisecond
	// period is the longest time between passes. A period longer than GracePeriods.Interval would
	// delay the observations of what is unused.
	period = 20 * time.Second
	// reportFailuresAfter is how long passes may fail before the error says for how long they have.
	reportFailuresAfter = time.Minute
	// firstListTime is how long the first lists of a term may take before a pass without them is
	// reported as failed.
	firstListTime = 5 * time.Second
)

// reconciler runs the controller for one term, or until the stores of the cluster change. Only the
// goroutine of Controller.Run uses it; watches and workers send to that goroutine.
type reconciler struct {
	*Controller
	ctx    context.Context
	cancel context.CancelFunc

	stores   discoveredStores
	settings allocation.Settings
	index    *allocation.Index
	watches  *watches
	ranges   rangeIdentity
	findings *findingCache
	repairs  *repairs
	plans    plans
	// ignoresOutdated reports that the store may have other marks than are known here.
	ignoresOutdated bool

	queue *workQueue
	lists *serviceLists
	// unconfirmed are the findings that open once a live read has confirmed them. needed are the
	// findings to repair that a live read has confirmed a moment ago.
	unconfirmed map[string]allocation.Finding
	needed      set
	// replacing is how many workers replace an address.
	replacing int
	// results are called by the goroutine of Run. waits are answered by it.
	results chan func()
	waits   chan revisionWait
	waiting []revisionWait

	// findingWrites and repairWrites delay writes after one that failed. What cannot be written of
	// one kind does not delay the other.
	findingWrites, repairWrites journal

	// nextPass is when the next pass is made.
	nextPass     time.Time
	failingSince time.Time

	storeStates     []allocation.StoreState
	compareDuration time.Duration
	compareTime     time.Time
	// watch serves watches of the findings of this term.
	watch *watchcache.Cache[allocation.Finding]
}

func newReconciler(ctx context.Context, c *Controller, stores Stores) *reconciler {
	ctx, cancel := context.WithCancel(ctx)
	settings := allocation.Settings{Stores: stores.Present, Ranges: c.ExpectedRanges, GracePeriods: c.GracePeriods}
	r := &reconciler{
		Controller: c, ctx: ctx, cancel: cancel, stores: discoveredStores{Stores: stores},
		settings: settings, index: allocation.NewIndex(settings),
		watches: newWatches(stores.Present), ranges: newRangeIdentity(),
		findings: newFindingCache(c.FindingHistory), repairs: newRepairs(c.RepairHistory),
		queue: newWorkQueue(), unconfirmed: map[string]allocation.Finding{}, needed: set{},
		results: make(chan func()), waits: make(chan revisionWait),
		nextPass: time.Now().Add(changeDelay), failingSince: time.Now(), watch: newFindingWatch(),
	}
	r.lists = &serviceLists{list: c.Cluster.Services, ctx: ctx, spawn: r.watches.running.Go}
	return r
}

// close stops the watches and the workers, and drops the snapshot.
func (r *reconciler) close(reason error) {
	r.cancel()
	r.watches.running.Wait()
	r.repairs.abort()
	r.published.drop(reason)
	r.published.problems.Store(nil)
}

// run runs until ctx ends or the stores of the cluster have changed.
func (r *reconciler) run(ctx context.Context, report func(error)) {
	timer := time.NewTimer(period)
	defer timer.Stop()
	r.enqueueReplacements()
	r.verifyRanges(time.Now())
	for !r.stores.changed {
		now := time.Now()
		if !now.Before(r.nextPass) {
			if err := r.pass(ctx); !r.isListing(err, now) {
				report(err)
			}
			now = time.Now()
		}
		r.dispatch(now)
		timer.Reset(time.Until(r.nextWake(now)))
		select {
		case <-ctx.Done():
			return
		case change := <-r.watches.changes:
			change()
			r.requestPass(time.Now().Add(changeDelay))
			r.answerWaits()
		case then := <-r.results:
			then()
			r.collectResults()
			_ = r.saveRepairs(ctx, time.Now()) // repairWrites reports it, and the next pass tries again
		case asked := <-r.waits:
			r.waiting = append(r.waiting, asked)
			r.answerWaits()
		case asked := <-r.requests:
			reply(ctx, r, asked)
			r.requestPass(time.Now())
		case <-timer.C:
		}
	}
}

// isListing reports whether a pass only lacks lists that are under way since the term began.
func (r *reconciler) isListing(err error, now time.Time) bool {
	return errors.Is(err, ErrNotSynced) && len(r.watches.failing) == 0 && now.Sub(r.failingSince) < firstListTime
}

// collectResults takes the results that are there, so that one write stores them.
func (r *reconciler) collectResults() {
	for range maxWorkers {
		select {
		case then := <-r.results:
			then()
		default:
			return
		}
	}
}

// nextWake returns when the next pass or the next work is due.
func (r *reconciler) nextWake(now time.Time) time.Time {
	wake := r.nextPass
	if at := r.queue.next(now); !at.IsZero() && at.Before(wake) {
		return at
	}
	return wake
}

// pass makes a pass and schedules the next one. Its error also reports what waits for a retry.
func (r *reconciler) pass(ctx context.Context) error {
	now := time.Now()
	err := errors.Join(r.reconcile(ctx, now), r.repairs.retryErr())
	if err != nil {
		if failing := time.Since(r.failingSince); failing > reportFailuresAfter {
			err = fmt.Errorf("no pass has succeeded for %s: %w", failing.Round(time.Second), err)
		}
		if r.published.snapshot.Load() == nil {
			r.published.drop(err)
		}
	}
	r.Reporter.PassFinished(r.compareDuration, r.published.snapshot.Load(), err)
	now = time.Now()
	if err == nil {
		r.failingSince = now
	}
	r.publishProblems(now, err)
	r.schedule(now)
	return err
}

// reconcile compares, queues what needs reads or writes, begins automatic repairs, publishes and
// stores. It reads nothing live: the workers do. A store that does not answer delays only what is
// to be stored.
func (r *reconciler) reconcile(ctx context.Context, now time.Time) error {
	r.discoverStores(now)
	r.verifyRanges(now)
	if err := r.watches.listErr(); err != nil {
		return err
	}
	r.compare(now)
	r.findings.expireIgnores(now)
	err := r.reloadRepairs(ctx, now)
	if err == nil {
		err = r.beginAutomatic(ctx, now)
	}
	r.enqueue()
	// A broken watch, and a conflict with another writer, are no observation: that writer may be
	// about to use what looks unused.
	if r.watches.err() == nil {
		r.index.Observe(now, r.repairs.conflicting()...)
	}
	r.publish()
	for _, store := range []func() error{
		func() error { return r.saveRepairs(ctx, now) },
		func() error { return r.storeFindings(ctx, now) },
		func() error { return r.prunePlans(ctx, now) },
	} {
		if stored := store(); err == nil {
			err = stored
		}
	}
	return err
}

// schedule sets the time of the next pass after one that ended now.
func (r *reconciler) schedule(now time.Time) {
	r.nextPass = now.Add(period)
	for _, at := range []time.Time{
		r.index.NextDue(), r.findings.nextIgnoreExpiry(), r.findingWrites.notBefore, r.repairWrites.notBefore,
	} {
		if !at.IsZero() {
			r.requestPass(at)
		}
	}
	if r.ranges.problem != "" {
		r.requestPass(now.Add(verifyInterval))
	}
	r.nextPass = maxTime(r.nextPass, now.Add(minPassInterval))
}

// minPassInterval is the shortest time between the end of a pass and the next one.
const minPassInterval = 10 * time.Millisecond

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// requestPass moves the next pass to a time, if it is earlier.
func (r *reconciler) requestPass(at time.Time) {
	if at.Before(r.nextPass) {
		r.nextPass = at
	}
}

// compare compares what is used with what is allocated, and updates the findings. A finding that
// watches out of step could have caused opens only after a worker has confirmed it.
func (r *reconciler) compare(now time.Time) {
	begun := time.Now()
	delta := r.index.Compare(now)
	r.compareDuration = time.Since(begun)
	delta.Changed = slices.DeleteFunc(delta.Changed, func(finding allocation.Finding) bool {
		if r.mustConfirm(finding) {
			r.unconfirmed[finding.Name] = finding
			return true
		}
		delete(r.unconfirmed, finding.Name)
		return false
	})
	for _, finding := range delta.Ended {
		delete(r.unconfirmed, finding.Name)
	}
	r.compareTime, r.storeStates = now, r.stores.describe(r.index.StoreStates())
	r.updateFindings(delta, now)
}

func (r *reconciler) updateFindings(delta allocation.Delta, now time.Time) {
	r.recordClosed(delta.Ended)
	for _, opened := range r.findings.update(delta, now) {
		r.Reporter.FindingOpened(opened)
		r.recordFinding(decisions.FindingOpened, opened, opened.Message)
	}
}

// mustConfirm reports whether a finding opens now, and watches out of step could have caused it. A
// finding about an unused subject has a long grace period, and is read live before it is freed.
func (r *reconciler) mustConfirm(finding allocation.Finding) bool {
	before := r.findings.current[finding.Name]
	opens := finding.State == allocation.StateOpen && (before == nil || before.State != allocation.StateOpen)
	return opens && finding.SpansWatches()
}

// storeFindings writes changed findings to the store, and deletes the marks of those that ended.
// After an error, a later pass writes them.
func (r *reconciler) storeFindings(ctx context.Context, now time.Time) error {
	return r.findingWrites.do(ctx, now, func(ctx context.Context) error {
		if findings, deleted := r.findings.toStore(); len(findings)+len(deleted) > 0 {
			if err := r.RepairStore.WriteFindings(ctx, findings, deleted); err != nil {
				return err
			}
			r.findings.markStored()
		}
		return r.storeIgnores(ctx)
	})
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
