package nodehealthcontroller

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

const (
	// roundMin and roundMax bound the time between two looks at the pods of a dead node; it doubles with each.
	roundMin = time.Second
	roundMax = time.Minute
)

// round is the looks at the pods of one dead node. The first finds what there is to mark. Later ones find pods that were bound to
// it meanwhile, or that the cache did not have yet, or somebody who contradicts: hence they become rarer.
type round struct {
	// of and died tell one death from another.
	of   types.UID
	died time.Time
	next monotonic.Instant
	wait time.Duration
	seen monotonic.Instant // when the node was last found dead
}

// markPods looks at the pods of dead nodes whose time has come: after a while, or in the next pass when there was no more room.
func (w *watch) markPods(dead []*nodehealth.NodeState) {
	if w.now.Instant < w.roundsAt {
		return
	}
	for _, s := range dead {
		r := w.round(s)
		if r.seen = w.now.Instant; w.now.Instant < r.next {
			continue
		}
		if !w.look(s, r) {
			return
		}
	}
	w.roundsAt = w.now.Instant.Add(roundMin)
	maps.DeleteFunc(w.rounds, func(_ string, r *round) bool { return r.seen != w.now.Instant })
}

// forgetMarks forgets failures that led to no further try for long: the pod is gone, or ready no more.
func (w *watch) forgetMarks() {
	maps.DeleteFunc(w.marks, func(_ types.UID, p pause) bool {
		return !p.busy && w.now.Instant >= p.until.Add(time.Duration(p.failures)*pauseMax)
	})
}

func (w *watch) round(s *nodehealth.NodeState) *round {
	r := w.rounds[s.Node.Name]
	if died := s.ReadySince(); r == nil || r.of != s.Node.UID || !r.died.Equal(died) {
		r = &round{of: s.Node.UID, died: died, wait: roundMin}
		w.rounds[s.Node.Name] = r
	}
	return r
}

// look hands out the pods that say they are ready on a dead node, and tells whether there was room for all of them.
func (w *watch) look(s *nodehealth.NodeState, r *round) bool {
	again := w.now.Instant.Add(r.wait)
	for _, pod := range w.Cache.Pods(s.Node.Name) {
		p := w.marks[pod.UID]
		switch {
		case p.busy || !nodehealth.ReadyOnLostNode(s.Node, pod):
		case w.now.Instant < p.until:
			again = min(again, p.until)
		case w.pods.room() == 0:
			return false
		default:
			w.marks[pod.UID] = pause{busy: true, failures: p.failures}
			w.pods.hand(job{pod: pod, terms: []*heldshards.Shard{w.held[s.Ownership.Shard]}})
		}
	}
	r.next, r.wait = again, min(2*r.wait, roundMax)
	return true
}

// marked takes in what came of a mark. One that failed is tried again, however long the node would have to wait for a look.
func (w *watch) marked(r result) {
	w.Metrics.marked(r.err)
	w.note(r.err)
	if r.err == nil {
		delete(w.marks, r.pod.UID) // the watch will have it before the next look
		w.Events.PodNotReady(r.pod)
		return
	}
	p := w.after(w.marks[r.pod.UID], r.err)
	w.marks[r.pod.UID] = p
	if of := w.rounds[r.pod.Spec.NodeName]; of != nil {
		of.next = min(of.next, p.until)
	}
}
