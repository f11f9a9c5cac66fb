package nodehealthcontroller

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// scanMin and scanMax bound the time between two scans of the Pods on a dead Node. It doubles
	// with each.
	scanMin = time.Second
	scanMax = time.Minute
)

// podScan is the state of the scans of one Node that is not ready. The first scan finds the Pods to
// mark. Later scans find Pods that were bound or cached late, or that another writer marked Ready
// again, so they become rarer.
type podScan struct {
	// uid and since identify one time in which the Node is not ready.
	uid   types.UID
	since time.Time
	next  monotonic.Instant
	wait  time.Duration
	// seen is when the Node was last found not ready.
	seen monotonic.Instant
	// pods are those that were found on a Node whose kubelet lives. It is nil for a dead Node.
	pods map[types.UID]struct{}
}

// left returns whether a Pod is left to the kubelet: it lives, and the Pod was marked once, or was
// not ready when the Node became so. A mark that failed is repeated.
func (s *podScan) left(pod types.UID, b attempt) bool {
	_, found := s.pods[pod]
	return found && b.until == 0
}

func (s *podScan) note(pod types.UID) {
	if s.pods != nil {
		s.pods[pod] = struct{}{}
	}
}

// markPods scans the dead Nodes that are due, every scanMin, and then those that are not ready. If
// the queue becomes full, the next pass continues.
func (r *run) markPods(dead, notReady []*nodehealth.NodeState) {
	if r.now.Instant < r.scanAt || !r.scanAll(dead, false) || !r.scanAll(notReady, true) {
		return
	}
	r.scanAt = r.now.Instant.Add(scanMin)
	maps.DeleteFunc(r.scans, func(_ string, scan *podScan) bool { return scan.seen != r.now.Instant })
}

// scanAll returns false if the queue is full.
func (r *run) scanAll(nodes []*nodehealth.NodeState, once bool) bool {
	for _, s := range nodes {
		scan := r.scanOf(s, once)
		if scan.seen = r.now.Instant; r.now.Instant < scan.next {
			continue
		}
		if !r.scan(s, scan) {
			return false
		}
	}
	return true
}

func (r *run) scanOf(s *nodehealth.NodeState, once bool) *podScan {
	scan := r.scans[s.Node.Name]
	if since := s.ReadySince(); scan == nil || scan.uid != s.Node.UID || !scan.since.Equal(since) || once != (scan.pods != nil) {
		scan = &podScan{uid: s.Node.UID, since: since, wait: scanMin}
		if once {
			scan.pods = map[types.UID]struct{}{}
		}
		r.scans[s.Node.Name] = scan
	}
	return scan
}

// scan gives the Pods that are to be marked to the workers. It returns false if the queue is full.
func (r *run) scan(s *nodehealth.NodeState, scan *podScan) bool {
	suspended := r.state.Suspension().Active()
	next := r.now.Instant.Add(scan.wait)
	for _, pod := range r.Cache.Pods(s.Node.Name) {
		b := r.podBackoffs[pod.UID]
		switch {
		case b.busy || !nodehealth.ReadyOnUnreadyNode(s.Node, pod) || scan.left(pod.UID, b):
		case r.now.Instant < b.until:
			next = min(next, b.until)
		case r.podJobs.free() == 0:
			return false
		default:
			r.podBackoffs[pod.UID] = attempt{busy: true, failures: b.failures}
			r.podJobs.add(job{
				pod: pod, terms: []*sessioncontroller.HeldShard{r.terms[s.Ownership.Shard]}, verify: suspended || r.behind != "",
				timeout: r.timeoutAfter(b.failures), span: r.spanOf(s.Node.Name),
			})
		}
		scan.note(pod.UID)
	}
	scan.next, scan.wait = next, backoff.Exponential{Min: scanMin, Max: scanMax}.Next(scan.wait)
	return true
}

// podMarked takes in the end of a job. A failed one is retried, even if the next scan of its Node
// is later.
func (r *run) podMarked(res result) {
	r.Metrics.podMarked(res.err)
	r.noteFailure(res.err)
	r.recordPod(&res, r.podBackoffs[res.pod.UID].failures > 0)
	if res.err == nil {
		delete(r.podBackoffs, res.pod.UID) // the watch delivers the Pod before the next scan
		r.Events.PodNotReady(res.pod)
		return
	}
	b := r.nextBackoff(r.podBackoffs[res.pod.UID], res.err)
	r.podBackoffs[res.pod.UID] = b
	if scan := r.scans[res.pod.Spec.NodeName]; scan != nil {
		scan.next = min(scan.next, b.until)
	}
}

// forgetPodBackoffs drops backoffs without a retry for long: the Pod was deleted or is not ready
// any more.
func (r *run) forgetPodBackoffs() {
	maps.DeleteFunc(r.podBackoffs, func(_ types.UID, b attempt) bool {
		return !b.busy && r.now.Instant >= b.until.Add(time.Duration(b.failures)*nodestore.MaxRetryDelay)
	})
}
