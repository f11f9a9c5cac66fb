package nodehealthcontroller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

const (
	// conflictPause is how long a node waits after somebody else wrote it: about as long as the watch needs to say so.
	conflictPause = Tick
	// pauseMin and pauseMax bound the pause after other failures; it doubles with each.
	pauseMin = time.Second
	pauseMax = 30 * time.Second
)

// job is one thing to write or to read. Exactly one of its fields is set.
type job struct {
	step  *nodehealth.Step
	pod   *corev1.Pod
	check *nodehealth.SelfCheck
	// begun is when the self-check was handed out.
	begun monotonic.Instant
	// terms are those that the write needs; a self-check needs none.
	terms []*heldshards.Shard
}

// result is what came of a job.
type result struct {
	job
	node *corev1.Node
	// newer are Leases that the cache does not have yet.
	newer []nodehealth.Sample
	err   error
	took  time.Duration
}

// start hands out a step; there is room for it.
func (w *watch) start(step nodehealth.Step) {
	name := step.Node.Name
	w.pauses[name] = pause{busy: true, failures: w.pauses[name].failures}
	if place, known := w.place(name); known {
		w.subjects[place].Busy = true
	}
	w.nodes.hand(job{step: &step, terms: w.needed(&step)})
}

// check hands out a self-check if none is under way.
func (w *watch) check(check *nodehealth.SelfCheck) {
	if check == nil || w.checking || w.now.Instant < w.checkAgain {
		return
	}
	w.checking = true
	w.checks <- job{check: check, begun: w.now.Instant}
}

// work does jobs of the first kind before those of the second, which may be nil, until there are no more of the first.
func (w *watch) work(ctx context.Context, first, second <-chan job) {
	for {
		j, ok := next(first, second)
		if !ok {
			return
		}
		begin := time.Now()
		r := w.do(ctx, j)
		r.job, r.took = j, time.Since(begin)
		w.results <- r // has room for all jobs there can be
	}
}

func (w *watch) do(ctx context.Context, j job) result {
	timeout := writeTimeout
	if j.check != nil {
		timeout = checkTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var r result
	r.err = under(ctx, j.terms, func(ctx context.Context) (err error) {
		switch {
		case j.check != nil:
			r.newer, err = w.Writer.NewerLeases(ctx, j.check.Samples)
		case j.pod != nil:
			err = w.Writer.MarkPodNotReady(ctx, j.pod, metav1.Now())
		case j.step.Kind == nodehealth.MarkUnknown:
			r.node, r.newer, err = w.declare(ctx, j.step)
		default:
			r.node, err = w.Writer.Write(ctx, *j.step)
		}
		return err
	})
	return r
}

// declare reads the Lease again before it writes: the cache may be behind, or the node come back at the last moment. One that
// beats may leave its Lease alone for long, so its session is looked at, too.
func (w *watch) declare(ctx context.Context, step *nodehealth.Step) (node *corev1.Node, newer []nodehealth.Sample, err error) {
	newer, err = w.Writer.NewerLeases(ctx, []nodehealth.Sample{{Node: step.Node.Name, LeaseVersion: step.LeaseVersion}})
	if err != nil || len(newer) > 0 {
		return nil, newer, err
	}
	if state, _ := w.Sessions.Session(step.Node.Name); state == nodehealth.SessionAlive || state == nodehealth.SessionSuspect {
		return nil, nil, errHeard
	}
	node, err = w.Writer.Write(ctx, *step)
	return node, nil, err
}

// listen takes in what came of the jobs that were done since the last pass.
func (w *watch) listen() {
	w.nodes.done, w.pods.done = 0, 0
	for {
		select {
		case r := <-w.results:
			w.take(r)
		default:
			return
		}
	}
}

func (w *watch) take(r result) {
	if r.check != nil {
		w.checked(r)
		return
	}
	if r.pod != nil {
		w.pods.take()
		w.marked(r)
	} else {
		w.nodes.take()
		w.written(r)
	}
}

func (w *watch) checked(r result) {
	w.checking = false
	if r.err != nil {
		w.checkAgain = w.now.Instant.Add(pauseMin)
		w.memory = w.memory.CheckFailed(w.now.Instant)
		return
	}
	w.memory = w.memory.CheckPassed(r.begun, w.now.Instant, r.newer)
}

func (w *watch) written(r result) {
	name := r.step.Node.Name
	w.Metrics.wrote(r)
	for _, sample := range r.newer {
		w.memory = w.memory.CacheBehind(w.now.Instant, sample)
	}
	w.pauses[name] = w.after(w.pauses[name], r.err)
	if w.pauses[name].until <= w.now.Instant {
		w.release(name)
	}
	w.note(r.err)
	if r.node == nil {
		return
	}
	w.Logger.Info("wrote node", "node", name, "what", r.step.Kind.String(), "why", r.step.Reason)
	if _, known := w.place(name); known && nodehealth.NewerNode(r.node, w.answered[name]) {
		w.answered[name] = r.node
	}
	w.see(name)
}

// after is the pause that follows a write.
func (w *watch) after(p pause, err error) pause {
	switch {
	case err == nil:
		return pause{until: w.now.Instant}
	case lostRace(err):
		return pause{until: w.now.Instant.Add(conflictPause), failures: p.failures}
	}
	wait := min(pauseMin<<min(p.failures, 10), pauseMax)
	if seconds, given := apierrors.SuggestsClientDelay(err); given {
		wait = max(wait, time.Duration(seconds)*time.Second)
	}
	return pause{until: w.now.Instant.Add(wait), failures: p.failures + 1}
}

// errHeard says that a node was heard before its declaration was written.
var errHeard = errors.New("its session has come back to life")

// lostRace tells that a write was overtaken, and that nothing is wrong with it but that.
func lostRace(err error) bool {
	return apierrors.IsConflict(err) || errors.Is(err, errTermOver) || errors.Is(err, errHeard)
}

// note remembers how writes go. Losing a race is no failure, nor is that an object is gone.
func (w *watch) note(err error) {
	if err == nil || !lostRace(err) && !apierrors.IsNotFound(err) {
		w.failed = err
	}
}
