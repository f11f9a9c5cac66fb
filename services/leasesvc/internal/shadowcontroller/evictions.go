package shadowcontroller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	nodeshadow "github.com/trivet-dev/trivet/services/leasesvc/internal/shadow"
)

// maxUnseen is the age from which the last look at a Pod that should be gone says nothing. A dry
// run looks at such a Pod every few seconds. With --taint-eviction-qps it may look at some never.
const maxUnseen = 30 * time.Second

// EvictionsConfig configures Evictions. All fields are required.
type EvictionsConfig struct {
	Tracker   Tracker
	Evictions *evictioncontroller.Controller
	Reader    evictionReader
	Logger    *slog.Logger
}

// evictionReader reads past the cache; *nodestore.Writer is one.
type evictionReader interface {
	LiveNode(ctx context.Context, name string) (*corev1.Node, error)
	LivePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
}

// Evictions is taint-eviction in dry run. It finds the Pods that taint-eviction would have deleted
// and that are still there.
type Evictions struct {
	cfg    EvictionsConfig
	writer *evictionWriter
}

// NewEvictions returns Evictions. It starts nothing.
func NewEvictions(cfg EvictionsConfig) *Evictions {
	return &Evictions{cfg: cfg, writer: &evictionWriter{evictionReader: cfg.Reader, found: map[types.UID]found{}}}
}

// Run plans and compares until ctx ends or the controller fails; then the Tracker is idle, because
// another replica compares. Run replaces Writer and Events of the cluster by ones that do nothing.
func (e *Evictions) Run(ctx context.Context, cluster evictioncontroller.Cluster, report func(error)) error {
	e.cfg.Tracker.Doubt(time.Now(), "the first pass of the term has not ended")
	defer e.cfg.Tracker.Idle()
	cluster.Writer, cluster.Events = e.writer, noEvents{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.cfg.Evictions.Run(ctx, cluster, report) })
	group.Go(func() error {
		every(ctx, e.cfg.Tracker.Settle(), e.pass)
		return nil
	})
	return group.Wait()
}

func (e *Evictions) pass(context.Context) {
	now := time.Now()
	compared, pending, unread := map[string]bool{}, map[types.UID]bool{}, 0
	running := e.cfg.Evictions.EachPending(now, func(p eviction.PendingPod, due time.Duration) {
		pending[p.Pod.UID] = true
		subject := "pods/" + p.Pod.Namespace + "/" + p.Pod.Name
		seen, found := e.writer.lastSeen(p.Pod.UID)
		switch {
		case found && now.Sub(seen.at) > maxUnseen, !found && due > maxUnseen:
			unread++
		case !found:
			compared[subject] = true
			e.cfg.Tracker.Observe(now, subject, nil)
		default:
			compared[subject] = true
			e.cfg.Tracker.Observe(now, subject, []difference.Difference{nodeshadow.NotEvicted(seen.pod, seen.taint)})
		}
	})
	if !running {
		e.cfg.Tracker.Doubt(now, "taint-eviction has not listed the cluster yet")
		return
	}
	e.writer.forget(pending)
	e.cfg.Tracker.Passed(time.Now(), len(compared), unread, func(subject string) bool { return compared[subject] })
}

// found is a Pod that would have been evicted, when it was last read.
type found struct {
	taint corev1.Taint
	pod   *corev1.Pod
	at    time.Time
}

// evictionWriter is the Writer of taint-eviction in dry run. It refuses each eviction and remembers
// the Pods that are there and are not being deleted. taint-eviction calls Evict only after it has
// read the Node past the cache.
type evictionWriter struct {
	evictionReader

	mu    sync.Mutex // guards found
	found map[types.UID]found
}

var _ evictioncontroller.Writer = &evictionWriter{}

// Evict implements evictioncontroller.Writer.
func (w *evictionWriter) Evict(ctx context.Context, e *eviction.Eviction) error {
	pod, err := w.LivePod(ctx, e.Pod)
	if err != nil {
		return fmt.Errorf("read pod %s/%s: %w", e.Pod.Namespace, e.Pod.Name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod == nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName != e.Node {
		delete(w.found, e.Pod.UID)
	} else {
		w.found[e.Pod.UID] = found{taint: e.Taint, pod: pod, at: time.Now()}
	}
	return evictioncontroller.ErrDryRun
}

// lastSeen returns false for a Pod that would not have been evicted yet, or that is gone.
func (w *evictionWriter) lastSeen(pod types.UID) (found, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, due := w.found[pod]
	return seen, due
}

// forget drops the Pods that need not leave any more.
func (w *evictionWriter) forget(pending map[types.UID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pod := range w.found {
		if !pending[pod] {
			delete(w.found, pod)
		}
	}
}

// Evicted implements evictioncontroller.Events.
func (noEvents) Evicted(*eviction.Eviction) {}

// EvictionCancelled implements evictioncontroller.Events.
func (noEvents) EvictionCancelled(eviction.PendingPod) {}
