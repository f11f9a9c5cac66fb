package shadowcontroller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
)

// world is a cluster of one tainted Node, with the last pass of its comparison.
type world struct {
	node *corev1.Node
	pods []*corev1.Pod

	mu                         sync.Mutex // guards what follows
	observed                   map[string]int
	compared, unread, differed int
	doubts                     []string
	idle                       bool
}

func (w *world) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (w *world) Synced() <-chan struct{} {
	synced := make(chan struct{})
	close(synced)
	return synced
}

func (w *world) Changed() map[string]struct{}                           { return map[string]struct{}{w.node.Name: {}} }
func (w *world) Node(string) *corev1.Node                               { return w.node }
func (w *world) Pods(string) []*corev1.Pod                              { return w.pods }
func (w *world) Relist()                                                {}
func (w *world) LiveNode(context.Context, string) (*corev1.Node, error) { return w.node, nil }

func (w *world) LivePod(_ context.Context, pod *corev1.Pod) (*corev1.Pod, error) { return pod, nil }

func (w *world) Observe(_ time.Time, subject string, found []difference.Difference) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observed[subject] = len(found)
}

func (w *world) Passed(_ time.Time, compared, unread int, current func(string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compared, w.unread, w.differed = compared, unread, 0
	for subject, differences := range w.observed {
		if current(subject) {
			w.differed += differences
		}
	}
}

func (w *world) Doubt(_ time.Time, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubts, w.idle = append(w.doubts, why), false
}

func (w *world) Idle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = true
}

func (w *world) Verdict(shadow.Verdict) {}
func (w *world) Settle() time.Duration  { return 30 * time.Second }

// A rate of evictions bounds how many Pods a dry run looks at. Those that are due and that it has
// not looked at are not counted as equal.
func TestEvictions_PodsThatAreNotReachedAreUndetermined(t *testing.T) {
	for rate, want := range map[float64]struct{ compared, unread, differed int }{
		0: {compared: 4, differed: 3}, 0.1: {compared: 2, unread: 2, differed: 1},
	} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{observed: map[string]int{}, node: &corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "1"},
					Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}},
				}}
				for i := range 4 {
					name, seconds := fmt.Sprint("pod-", i), int64(0)
					if i == 3 {
						seconds = 3600
					}
					w.pods = append(w.pods, &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"},
						Spec:       corev1.PodSpec{NodeName: "a", Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}},
					})
				}
				metrics, err := evictioncontroller.NewMetrics(nil)
				if err != nil {
					t.Fatal(err)
				}
				logger := slog.New(slog.DiscardHandler)
				evictions := NewEvictions(EvictionsConfig{Tracker: w, Reader: w, Logger: logger, Evictions: evictioncontroller.New(evictioncontroller.Config{
					Rules: eviction.Rules{Rate: rate}, Workers: 2, Metrics: metrics, Logger: logger,
				})})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- evictions.Run(ctx, evictioncontroller.Cluster{Cache: w}, func(error) {}) }()
				time.Sleep(time.Second)
				w.mu.Lock()
				if len(w.doubts) == 0 || w.idle {
					t.Errorf("doubts %q and idle %t before the first pass, want a doubt", w.doubts, w.idle)
				}
				w.mu.Unlock()
				time.Sleep(2 * time.Minute)
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if !w.idle {
					t.Error("the tracker is not idle after the term")
				}
				if w.compared != want.compared || w.unread != want.unread || w.differed != want.differed {
					t.Errorf("compared %d, unread %d, differed %d; want %+v", w.compared, w.unread, w.differed, want)
				}
			})
		})
	}
}
