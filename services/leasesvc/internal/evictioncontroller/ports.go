package evictioncontroller

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// Objects is what the cluster looks like; *Watch is one. All methods but Run answer from memory and may be called by any
// goroutine; what they return is not written to.
type Cache interface {
	// Run watches until ctx ends. It is called once.
	Run(ctx context.Context) error
	// Synced is closed once everything has been listed.
	Synced() <-chan struct{}
	// Changed returns the names of the Nodes that changed, or a pod on them, since the last call.
	Changed() map[string]struct{}
	// Node returns nil for a Node that does not exist.
	Node(name string) *corev1.Node
	// Pods returns the pods on a Node.
	Pods(node string) []*corev1.Pod
}

// Writer evicts pods and reads past the cache; *Client is one. Its methods block until the answer is there or ctx, which carries
// the term, ends. They are called concurrently, for different pods.
type Writer interface {
	// Node reads a Node past any cache. It returns nil for one that does not exist.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// Evict marks a pod as disrupted and deletes it, both only if it is still as it was. A pod that is gone is not found.
	Evict(ctx context.Context, e *eviction.Eviction) error
}

// Events tells people; *Recorder is one. Its methods return at once.
type Events interface {
	Evicted(e *eviction.Eviction)
	EvictionCancelled(w eviction.PendingPod)
}

// Health tells of what node health is in doubt, whose taints evict nobody meanwhile. It answers from memory and may be called by
// any goroutine.
type NodeHealth interface {
	// Doubt tells whether and why the taints that node health put on the Nodes of a zone are in doubt; zones are called as in
	// package nodehealth.
	TaintsUnreliable(zone string) (why string, doubted bool)
}

// NoDoubt is for a process that does not judge Nodes itself: whoever does puts no taint that it doubts.
type ReliableTaints struct{}

// Doubt returns false.
func (ReliableTaints) TaintsUnreliable(string) (string, bool) { return "", false }
