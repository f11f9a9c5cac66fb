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

// log notes what it is given.
type log struct {
	mu  sync.Mutex // guards all
	all []string
}

func (l *log) note(what, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, what+" "+name)
}

// take returns what was noted since it was last called, sorted.
func (l *log) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	slices.Sort(all)
	return all
}

func (l *log) PutService(o *corev1.Service)             { l.note("put service", o.Name) }
func (l *log) DeleteService(o *corev1.Service)          { l.note("delete service", o.Name) }
func (l *log) PutPod(o *corev1.Pod)                     { l.note("put pod", o.Name) }
func (l *log) DeletePod(o *corev1.Pod)                  { l.note("delete pod", o.Name) }
func (l *log) PutNode(o *corev1.Node)                   { l.note("put node", o.Name) }
func (l *log) DeleteNode(o *corev1.Node)                { l.note("delete node", o.Name) }
func (l *log) SliceSeen(*metav1.ObjectMeta) bool        { return true }
func (l *log) PutSlice(o *discoveryv1.EndpointSlice)    { l.note("put slice", o.Name) }
func (l *log) DeleteSlice(o *discoveryv1.EndpointSlice) { l.note("delete slice", o.Name) }

func (l *log) SlicesListed(map[types.NamespacedName]struct{}, string) {}

func TestRun_PutsEverythingThenEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := slicetest.Service("web")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
		client := fake.NewClientset(service, node, slicetest.Pod("web-0", "10.1.0.1"), slicetest.Slice(service, "web-1", nil))
		var seen log
		w := kube.NewWatches(slicetest.Clientset{Interface: client}, &seen, slog.New(slog.DiscardHandler))
		if w.Check() == nil {
			t.Error("the caches count as filled before Run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- w.Run(ctx) }()

		<-w.Synced()
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
