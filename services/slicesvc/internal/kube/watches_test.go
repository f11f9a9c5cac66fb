package kube_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// recordingHandler records the calls.
type recordingHandler struct {
	mu  sync.Mutex // guards all
	all []string
}

func (h *recordingHandler) record(call, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, call+" "+name)
}

// take returns the calls since it was last called, sorted.
func (h *recordingHandler) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.all
	h.all = nil
	slices.Sort(all)
	return all
}

func (h *recordingHandler) PutService(o *corev1.Service)                 { h.record("put service", o.Name) }
func (h *recordingHandler) DeleteService(o *corev1.Service)              { h.record("delete service", o.Name) }
func (h *recordingHandler) PutPod(o *corev1.Pod)                         { h.record("put pod", o.Name) }
func (h *recordingHandler) DeletePod(o *corev1.Pod)                      { h.record("delete pod", o.Name) }
func (h *recordingHandler) PutNode(o *corev1.Node)                       { h.record("put node", o.Name) }
func (h *recordingHandler) DeleteNode(o *corev1.Node)                    { h.record("delete node", o.Name) }
func (h *recordingHandler) ObserveSliceMetadata(*metav1.ObjectMeta) bool { return true }
func (h *recordingHandler) PutSlice(o *discoveryv1.EndpointSlice)        { h.record("put slice", o.Name) }
func (h *recordingHandler) DeleteSlice(o *discoveryv1.EndpointSlice) {
	h.record("delete slice", o.Name)
}

func (h *recordingHandler) SlicesListed(map[types.NamespacedName]struct{}, string) {}

func TestWatches_PutEverythingThenEveryChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := slicetest.Service("web")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
		client := fake.NewClientset(service, node, slicetest.Pod("web-0", "10.1.0.1"), slicetest.Slice(service, "web-1", nil))
		var seen recordingHandler
		w := kube.NewWatches(slicetest.Clientset{Interface: client}, never, slog.New(slog.DiscardHandler))
		if w.Check() == nil {
			t.Error("Check passes before Run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- w.Run(ctx, &seen) }()

		<-w.Synced()
		synctest.Wait() // the watches are open: the fake clientset sends no earlier events
		if err := w.Check(); err != nil {
			t.Error(err)
		}
		want := []string{"put node node-a", "put pod web-0", "put service web", "put slice web-1"}
		if diff := gocmp.Diff(want, seen.take()); diff != "" {
			t.Errorf("before Synced (-want +got):\n%s", diff)
		}

		pods, nodes := client.CoreV1().Pods(slicetest.Namespace), client.CoreV1().Nodes()
		_, err := pods.Update(ctx, slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready), metav1.UpdateOptions{})
		must(t, err)
		must(t, nodes.Delete(ctx, "node-a", metav1.DeleteOptions{}))
		must(t, client.CoreV1().Services(slicetest.Namespace).Delete(ctx, "web", metav1.DeleteOptions{}))
		must(t, client.DiscoveryV1().EndpointSlices(slicetest.Namespace).Delete(ctx, "web-1", metav1.DeleteOptions{}))
		synctest.Wait()
		must(t, pods.Delete(ctx, "web-0", metav1.DeleteOptions{}))
		synctest.Wait()
		want = []string{"delete node node-a", "delete pod web-0", "delete service web", "delete slice web-1", "put pod web-0"}
		if diff := gocmp.Diff(want, seen.take()); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		cancel()
		must(t, <-returned)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
