package evictioncontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

const (
	// conflictMin and conflictMax bound the backoff after a write conflict, which the watch
	// resolves. It doubles in case the watch hangs.
	conflictMin = 4 * Interval
	conflictMax = 5 * time.Second
	// donePause is longer than the watch takes to deliver the deletion of a Pod.
	donePause = 5 * time.Second
	// dryRunRetry is the time between two refusals of the same eviction in a dry run.
	dryRunRetry = 5 * time.Second
	// running means that an eviction is running, so the attempt has no end yet.
	running = monotonic.Instant(1<<63 - 1)
)

// ErrDryRun is returned by the Writer of a dry run. The eviction is tried again later, and is no
// failure.
var ErrDryRun = errors.New("this loop is in dry run and evicts no Pod")

// errWithdrawn ends an eviction that does not hold any more.
var errWithdrawn = errors.New("the Node has changed and the Pod need not leave now")

// errGone ends the eviction of a Pod that is gone.
var errGone = errors.New("the Pod is gone")

// attempt is the eviction of one Pod.
type attempt struct {
	// until is when the Pod may be evicted again; running while an eviction is running.
	until    monotonic.Instant
	failures int
	err      error // the last failure
	// conflicts are those in a row.
	conflicts int
}

// job is one eviction.
type job struct {
	eviction.Eviction
	// readPod says that the Pod is read past the cache too, because the cached one was refused.
	readPod bool
	// timeout bounds the job with its requests. It is doubled with each failure, so that a slow
	// kube-apiserver delays an eviction and forbids none.
	timeout time.Duration
}

// result is the end of an eviction.
type result struct {
	eviction.Eviction
	// podBehind says that kube-apiserver has another version of the Pod than the cache, or none.
	podBehind bool
	// live is the Node as it was read; nil if it was not read or does not exist.
	live *corev1.Node
	err  error
}

// evict gives an eviction to the workers. There must be a free place.
func (r *run) evict(e eviction.Eviction) {
	a := r.attempts[e.Pod.UID]
	a.until = running
	r.attempts[e.Pod.UID] = a
	r.free--
	r.jobs <- job{Eviction: e, readPod: a.conflicts > 0, timeout: backoff.Exponential{Min: evictTimeout, Max: maxEvictTimeout}.After(a.failures + 1)}
}

// work evicts until jobs is closed.
func (r *run) work(ctx context.Context) {
	for j := range r.jobs {
		res := result{Eviction: j.Eviction}
		res.live, res.podBehind, res.err = r.do(ctx, j)
		r.results <- res // has a place for each job
	}
}

// do reads the Node first: the cache may be behind, or the taint may just have been removed. After
// a conflict it reads the Pod as well, because a cache that is behind would lead to the same
// conflict for ever.
func (r *run) do(ctx context.Context, j job) (live *corev1.Node, podBehind bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	e := j.Eviction
	if live, err = r.Writer.LiveNode(ctx, e.Node); err != nil {
		return nil, false, err
	}
	if j.readPod {
		pod, err := r.Writer.LivePod(ctx, e.Pod)
		if err != nil {
			return live, false, err
		}
		if pod == nil {
			return live, true, errGone
		}
		podBehind = nodehealth.Newer(pod.ResourceVersion, e.Pod.ResourceVersion)
		e.Pod = pod
	}
	now := time.Now()
	if live == nil || e.Pod.Spec.NodeName != e.Node || !e.Holds(r.instant(now), now, live) {
		return live, podBehind, errWithdrawn
	}
	err = r.Writer.Evict(ctx, &e)
	return live, podBehind || err == nil || apierrors.IsNotFound(err), err
}

// collectResults takes in the evictions that have ended.
func (r *run) collectResults() {
	for {
		select {
		case result := <-r.results:
			r.take(result)
		default:
			return
		}
	}
}

func (r *run) take(result result) {
	e := &result.Eviction
	r.free++
	r.changed = true
	late := r.now.Sub(e.Due)
	r.Metrics.ended(result.err, late)
	before := r.attempts[e.Pod.UID]
	after := r.nextAttempt(before, result.err)
	r.attempts[e.Pod.UID] = after
	if result.podBehind {
		r.behind.note(r.now, e.Pod)
	}
	pod := e.Pod.Namespace + "/" + e.Pod.Name
	switch {
	case result.err == nil:
		r.failed = nil
		r.Logger.Info("evicted pod", "pod", pod, "node", e.Node, "taint", e.Taint.ToString(), "tolerated", e.Due.Sub(e.Since), "late", late)
		r.Events.Evicted(e)
		r.record(decisions.PodEvicted, e.Node, e.Pod, fmt.Sprintf("the taint %s evicts it, which it tolerated for %v", e.Taint.ToString(), e.Due.Sub(e.Since).Round(time.Millisecond)))
	case errors.Is(result.err, ErrDryRun):
		r.failed = nil
	case errors.Is(result.err, errWithdrawn):
		r.observeLive(result.live)
	case after.failures > before.failures:
		r.failed = fmt.Errorf("evict pod %s from node %q: %w", pod, e.Node, result.err)
		if before.failures == 0 {
			r.record(decisions.WriteRefused, e.Node, e.Pod, fmt.Sprintf("evict: %v; it is tried again", result.err))
		}
		r.Logger.Warn("cannot evict pod, retrying", "pod", pod, "node", e.Node, "failures", after.failures, "error", result.err)
	}
}

// observeLive takes in a Node that the cache may not have yet, so that its other Pods are not
// evicted in vain.
func (r *run) observeLive(live *corev1.Node) {
	if live == nil {
		return // the watch delivers the deletion
	}
	if nodehealth.NewerNode(live, r.live[live.Name]) {
		r.live[live.Name] = live
	}
	r.observe(live.Name)
}

func (r *run) nextAttempt(a attempt, err error) attempt {
	switch {
	case err == nil, apierrors.IsNotFound(err), errors.Is(err, errGone):
		return attempt{until: r.now.Add(donePause)}
	case errors.Is(err, ErrDryRun):
		return attempt{until: r.now.Add(dryRunRetry)}
	case apierrors.IsConflict(err), errors.Is(err, errWithdrawn):
		wait := backoff.Exponential{Min: conflictMin, Max: conflictMax}.After(a.conflicts + 1)
		return attempt{until: r.now.Add(wait), failures: a.failures, err: a.err, conflicts: a.conflicts + 1}
	}
	return attempt{until: r.now.Add(nodestore.RetryDelay(err, a.failures)), failures: a.failures + 1, err: err}
}

// forgetAttempts drops attempts without a retry for long: their Pods need not leave any more.
func (r *run) forgetAttempts() {
	for uid, a := range r.attempts {
		if a.until != running && r.now >= a.until && (a.failures+a.conflicts == 0 || r.now >= a.until.Add(nodestore.MaxRetryDelay)) {
			delete(r.attempts, uid)
		}
	}
}

func (r *run) paused() map[types.UID]monotonic.Instant {
	paused := make(map[types.UID]monotonic.Instant, len(r.attempts))
	for uid, a := range r.attempts {
		paused[uid] = a.until
	}
	return paused
}

// retries returns whether an eviction that failed is to be retried.
func (r *run) retries() bool {
	for _, a := range r.attempts {
		if a.failures > 0 {
			return true
		}
	}
	return false
}
