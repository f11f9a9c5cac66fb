package nodehealthcontroller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Objects is what the cluster looks like; *nodeobject.Watch is one. All methods but Run answer from memory and may be called
// by any goroutine; what they return is not written to.
type Cache interface {
	// Run watches until ctx ends. It is called once.
	Run(ctx context.Context) error
	// Synced is closed once everything has been listed.
	Synced() <-chan struct{}
	// Changed returns the names of the Nodes of which the Node or the Lease changed since the last call.
	Changed() map[string]struct{}
	// Node returns nil for a Node that does not exist.
	Node(name string) *corev1.Node
	// Lease returns the zero Lease when there is none.
	Lease(name string) nodehealth.Lease
	// Pods returns the pods on a Node.
	Pods(node string) []*corev1.Pod
}

// Writer writes to the cluster and reads past the caches; *nodeobject.Writer is one. Its methods block until the answer is
// there or ctx, which carries the term, ends. They are called concurrently, for different objects.
type Writer interface {
	// Write carries out a step if the Node is still as it was, and returns it as it is then.
	Write(ctx context.Context, step nodehealth.Step) (*corev1.Node, error)
	// MarkUnready sets a pod's Ready condition to False if it is still as it was. A pod that is gone is no error.
	MarkPodNotReady(ctx context.Context, pod *corev1.Pod, at metav1.Time) error
	// Compare returns the Leases that are newer than the samples say.
	NewerLeases(ctx context.Context, samples []nodehealth.Sample) ([]nodehealth.Sample, error)
}

// Events tells people; *nodeobject.Events is one. Its methods return at once.
type Events interface {
	NodeRegistered(*corev1.Node)
	NodeRemoved(*corev1.Node)
	// NodeNotReady tells of a Node that was ready and has been declared.
	NodeNotReady(*corev1.Node)
	PodNotReady(*corev1.Pod)
}

// Sessions are those of nodes that beat over gRPC. Its methods answer from memory and may be called by any goroutine.
type Sessions interface {
	// Changed returns the names of the nodes whose session changed its state, or whose Lease was written, since the last call.
	Changed() map[string]struct{}
	// Session returns the state of a node's session and the resourceVersion to which its owner last wrote the Lease.
	Session(node string) (state nodehealth.Session, written string)
}

// NoSessions is for a process that hears nobody.
type NoSessions struct{}

// Changed returns nothing.
func (NoSessions) Changed() map[string]struct{} { return nil }

// Session returns nodehealth.NoSession.
func (NoSessions) Session(string) (nodehealth.Session, string) { return nodehealth.NoSession, "" }
