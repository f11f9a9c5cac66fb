package shadowcontroller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
)

// Reader reads past the cache; *nodestore.Writer is one.
type Reader interface {
	LiveNode(ctx context.Context, name string) (*corev1.Node, error)
	LivePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	NewerLeases(ctx context.Context, samples []nodehealth.Sample) ([]nodehealth.LiveLease, error)
}

// writer is the Writer of node-health in dry run. It refuses each write and remembers when a Node
// would have been marked Unknown: node-health calls Write for that only after it has read the Lease
// past the cache.
type writer struct {
	Reader

	mu     sync.Mutex // guards judged
	judged map[types.UID]time.Time
}

var _ nodehealthcontroller.Writer = &writer{}

func newWriter(reader Reader) *writer {
	return &writer{Reader: reader, judged: map[types.UID]time.Time{}}
}

// Write implements nodehealthcontroller.Writer.
func (w *writer) Write(_ context.Context, step nodehealth.Step) (*corev1.Node, error) {
	if step.Kind == nodehealth.MarkUnknown {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, known := w.judged[step.Node.UID]; !known {
			w.judged[step.Node.UID] = time.Now()
		}
	}
	return nil, nodehealthcontroller.ErrDryRun
}

// MarkPodNotReady implements nodehealthcontroller.Writer.
func (w *writer) MarkPodNotReady(context.Context, *corev1.Pod, metav1.Time) error {
	return nodehealthcontroller.ErrDryRun
}

// RenewCheckLease implements nodehealthcontroller.Writer. A dry run writes nothing, so it does not
// find out when only writes fail.
func (w *writer) RenewCheckLease(context.Context, int) error { return nil }

// judgedAt returns when a Node would have been marked Unknown; false if it would not.
func (w *writer) judgedAt(node types.UID) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.judged[node]
	return at, known
}

// forget drops the verdicts of Nodes that are not silent any more.
func (w *writer) forget(keep func(node types.UID) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range w.judged {
		if !keep(node) {
			delete(w.judged, node)
		}
	}
}

// noEvents sends no Events: what they would say is not done.
type noEvents struct{}

var _ nodehealthcontroller.Events = noEvents{}

func (noEvents) NodeRegistered(*corev1.Node) {}
func (noEvents) NodeRemoved(*corev1.Node)    {}
func (noEvents) NodeNotReady(*corev1.Node)   {}
func (noEvents) PodNotReady(*corev1.Pod)     {}
