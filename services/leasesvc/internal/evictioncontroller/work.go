package evictioncontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

const (
	// raceMin and raceMax bound how long a pod waits after somebody else wrote it, or its Node: about as long as the watch needs to
	// say so. It doubles with each, for a watch that hangs.
	raceMin = 4 * Tick
	raceMax = 5 * time.Second
	// donePause is longer than the watch needs to say that a deleted pod is terminating or gone.
	donePause = 5 * time.Second
	// pauseMin and pauseMax bound the pause after other failures; it doubles with each.
	pauseMin = time.Second
	pauseMax = 30 * time.Second
	// endless is a pause that something else ends.
	endless = monotonic.Instant(1<<63 - 1)
)

// errWithdrawn is the end of an eviction that did not hold.
var errWithdrawn = errors.New("the Node has changed and the pod need not leave now")

// try is how the eviction of one pod fares.
type try struct {
	// until is when the pod may be evicted again: endless while an eviction is under way.
	until    monotonic.Instant
	failures int
	err      error // the last failure
	races    int   // lost in a row
	done     bool  // deleted, and the watch does not know it yet
}

// result is what came of an eviction.
type result struct {
	eviction.Eviction
	// live is the Node as it was read, nil when it was not or does not exist.
	live *corev1.Node
	err  error
}

// start hands out an eviction; there is room for it.
func (r *round) start(e eviction.Eviction) {
	t := r.tries[e.Pod.UID]
	t.until = endless
	r.tries[e.Pod.UID] = t
	r.free--
	r.jobs <- e
}

// work evicts until there is nobody left.
func (r *round) work(ctx context.Context) {
	for e := range r.jobs {
		live, err := r.evict(ctx, &e)
		r.results <- result{Eviction: e, live: live, err: err} // has room for all jobs there can be
	}
}

// evict reads the Node first: the cache may be behind, or the taint be taken away at the last moment.
func (r *round) evict(ctx context.Context, e *eviction.Eviction) (live *corev1.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	live, err = r.Writer.Node(ctx, e.Node)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if live == nil || !e.Holds(r.instant(now), now, live) {
		return live, errWithdrawn
	}
	return live, r.Writer.Evict(ctx, e)
}

// listen takes in what came of the evictions that are done.
func (r *round) listen() {
	for {
		select {
		case result := <-r.results:
			r.take(result)
		default:
			return
		}
	}
}

func (r *round) take(result result) {
	e := &result.Eviction
	r.free++
	r.changed = true
	late := r.now.Sub(e.Due)
	r.Metrics.evicted(result.err, late)
	before := r.tries[e.Pod.UID]
	after := r.after(before, result.err)
	r.tries[e.Pod.UID] = after
	pod := e.Pod.Namespace + "/" + e.Pod.Name
	switch {
	case result.err == nil:
		r.failed = nil
		r.Logger.Info("evicted pod", "pod", pod, "node", e.Node, "taint", e.Taint.ToString(), "tolerated", e.Due.Sub(e.Since), "late", late)
		r.Events.Evicted(e)
	case errors.Is(result.err, errWithdrawn):
		r.learn(result.live)
	case after.failures > before.failures:
		r.failed = fmt.Errorf("evict pod %s from node %q: %w", pod, e.Node, result.err)
		r.Logger.Warn("pod not evicted, which is tried again", "pod", pod, "node", e.Node, "failures", after.failures, "error", result.err)
	}
}

// learn takes in a Node that the watch may not have yet, so that the other pods on it are not tried in vain.
func (r *round) learn(live *corev1.Node) {
	if live == nil {
		return // the watch will tell
	}
	if nodehealth.NewerNode(live, r.answered[live.Name]) {
		r.answered[live.Name] = live
	}
	r.see(live.Name)
}

// after is how a try stands once it has ended.
func (r *round) after(t try, err error) try {
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return try{until: r.now.Add(donePause), done: true}
	case apierrors.IsConflict(err), errors.Is(err, errWithdrawn):
		wait := min(raceMin<<min(t.races, 10), raceMax)
		return try{until: r.now.Add(wait), failures: t.failures, err: t.err, races: t.races + 1}
	}
	wait := min(pauseMin<<min(t.failures, 10), pauseMax)
	if seconds, given := apierrors.SuggestsClientDelay(err); given {
		wait = max(wait, time.Duration(seconds)*time.Second)
	}
	return try{until: r.now.Add(wait), failures: t.failures + 1, err: err}
}

// forget drops tries that led to no further one for long, so that only pods that have to leave are remembered.
func (r *round) forget() {
	for uid, t := range r.tries {
		if t.until != endless && r.now >= t.until && (t.failures+t.races == 0 || r.now >= t.until.Add(pauseMax)) {
			delete(r.tries, uid)
		}
	}
}

func (r *round) paused() map[types.UID]monotonic.Instant {
	paused := make(map[types.UID]monotonic.Instant, len(r.tries))
	for uid, t := range r.tries {
		paused[uid] = t.until
	}
	return paused
}

// struggles tells whether a pod waits after a failure; one that failed may be gone.
func (r *round) struggles() bool {
	for _, t := range r.tries {
		if t.failures > 0 {
			return true
		}
	}
	return false
}
