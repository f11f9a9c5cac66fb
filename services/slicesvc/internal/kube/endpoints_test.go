package kube

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func fullEndpoints() *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: slicetest.Namespace, Name: "web", UID: "uid-of-web", ResourceVersion: "5",
			Labels:      map[string]string{"team": "shop"},
			Annotations: map[string]string{"note": "mirrored", corev1.LastAppliedConfigAnnotation: "{}"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Operation: "Update", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:subsets":{}}`),
			}},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1", TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}}},
			Ports:     []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
	}
}

// Only the metadata is decoded at first; the content is that of the full decoder.
func TestDecoder_EndpointsAreDecodedOnDemand(t *testing.T) {
	t.Parallel()
	masked, full := decoders()
	data := encode(t, fullEndpoints(), "Endpoints")
	object, _, err := masked.Decode(data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	lazy, ok := object.(*lazyEndpoints)
	if !ok || lazy.decoded != nil || lazy.Labels["team"] != "shop" {
		t.Fatalf("decoded %+v, want the metadata alone", object)
	}
	got, err := lazy.decode()
	if err != nil {
		t.Fatal(err)
	}
	whole, _, err := full.Decode(data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := whole.(*corev1.Endpoints)
	if diff := gocmp.Diff(stripEndpoints(want), got); diff != "" {
		t.Errorf("content (-full +masked):\n%s", diff)
	}
	if _, applied := got.Annotations[corev1.LastAppliedConfigAnnotation]; applied || got.Annotations["note"] == "" || got.ManagedFields[0].Manager != "kubectl" {
		t.Errorf("metadata is %+v", got.ObjectMeta)
	}
	bookmark := encode(t, &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}, "Endpoints")
	if object, _, err := masked.Decode(bookmark, nil, nil); err != nil {
		t.Error(err)
	} else if _, ok := object.(*corev1.Endpoints); !ok {
		t.Errorf("a bookmark is decoded as %T", object)
	}
	if object, _, err := masked.Decode(data[:len(data)-3], nil, nil); err == nil {
		t.Errorf("a truncated object is decoded as %+v", object)
	}
}

// A mirrored slice keeps the field managers of its annotations, in every way that it reaches the
// cache.
func TestDecoder_MirroredSlicesKeepTheWritersOfAnnotations(t *testing.T) {
	t.Parallel()
	slice := fullSlice()
	slice.Labels[discoveryv1.LabelManagedBy] = mirror.ManagedBy
	slice.ManagedFields = append(slice.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: "trivet", Operation: "Update", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:note":{}},"f:labels":{}},"f:endpoints":{}}`),
	})
	masked, _ := decoders()
	object, _, err := masked.Decode(encode(t, slice, "EndpointSlice"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	lazy, _ := object.(*lazySlice)
	decoded, err := lazy.decode()
	if err != nil {
		t.Fatal(err)
	}
	if want := stripSlice(slice).ManagedFields; len(want) != 2 {
		t.Errorf("managed fields are %v, want the last writer and our annotations", want)
	} else if diff := gocmp.Diff(want, decoded.ManagedFields); diff != "" {
		t.Errorf("managed fields (-full +masked):\n%s", diff)
	}
	if newest := NewestManager(decoded.ManagedFields); newest[0].Manager != "a" {
		t.Errorf("the last writer is %v", newest)
	}
	slice.Labels[discoveryv1.LabelManagedBy] = "other"
	if kept := stripSlice(slice).ManagedFields; len(kept) != 1 || kept[0].FieldsV1 != nil {
		t.Errorf("another slice keeps %v", kept)
	}
}

// endpointsRecorder records calls of both handlers, in order.
type endpointsRecorder struct {
	mu  sync.Mutex // guards all
	all []string
}

func (r *endpointsRecorder) record(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, call)
}

func (r *endpointsRecorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return strings.Join(all, ", ")
}

func (r *endpointsRecorder) ObserveEndpoints(meta *metav1.ObjectMeta) bool {
	r.record("observe " + meta.Name)
	return meta.Labels["skip"] == ""
}
func (r *endpointsRecorder) PutEndpoints(o *corev1.Endpoints)                     { r.record("put " + o.Name) }
func (r *endpointsRecorder) DeleteEndpoints(meta *metav1.ObjectMeta)              { r.record("delete " + meta.Name) }
func (r *endpointsRecorder) PutService(o *corev1.Service)                         { r.record("service " + o.Name) }
func (*endpointsRecorder) DeleteService(*corev1.Service)                          {}
func (*endpointsRecorder) PutPod(*corev1.Pod)                                     {}
func (*endpointsRecorder) DeletePod(*corev1.Pod)                                  {}
func (*endpointsRecorder) PutNode(*corev1.Node)                                   {}
func (*endpointsRecorder) DeleteNode(*corev1.Node)                                {}
func (*endpointsRecorder) ObserveSliceMetadata(*metav1.ObjectMeta) bool           { return false }
func (*endpointsRecorder) PutSlice(*discoveryv1.EndpointSlice)                    {}
func (*endpointsRecorder) DeleteSlice(*discoveryv1.EndpointSlice)                 {}
func (*endpointsRecorder) SlicesListed(map[types.NamespacedName]struct{}, string) {}

func TestWatchEndpoints_ComesAfterTheServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		skipped := fullEndpoints()
		skipped.Name, skipped.Labels = "skipped", map[string]string{"skip": "yes"}
		client := fake.NewClientset(slicetest.Service("web"), fullEndpoints(), skipped)
		w := NewWatches(slicetest.Clientset{Interface: client}, 1<<62, slog.New(slog.DiscardHandler))
		var seen endpointsRecorder
		w.WatchEndpoints(&seen)
		var kinds []string
		for _, status := range w.Status() {
			kinds = append(kinds, status.Kind)
		}
		if !slices.IsSorted(kinds) || !slices.Contains(kinds, "Endpoints") {
			t.Errorf("kinds are %v", kinds)
		}
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- w.Run(ctx, &seen) }()
		<-w.EndpointsSynced()
		synctest.Wait()
		if err := w.Check(); err != nil {
			t.Error(err)
		}
		first := seen.take()
		if !strings.HasPrefix(first, "service web, ") || !strings.Contains(first, "observe web, put web") || strings.Contains(first, "put skipped") {
			t.Errorf("calls are %q, want the Service first, and no content of the skipped object", first)
		}
		endpoints := client.CoreV1().Endpoints(slicetest.Namespace)
		changed := fullEndpoints()
		changed.ResourceVersion = "6"
		if _, err := endpoints.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := endpoints.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := seen.take(); got != "observe web, put web, delete web" {
			t.Errorf("calls are %q", got)
		}
		cancel()
		if err := <-returned; err != nil {
			t.Error(err)
		}
	})
}

// A replica without the right to list Endpoints is not ready, and writes the slices of Services.
func TestWatchEndpoints_AFailureConcernsOnlyMirroring(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWatches(refusingEndpoints{slicetest.Clientset{Interface: fake.NewClientset()}}, 1<<62, slog.New(slog.DiscardHandler))
		var seen endpointsRecorder
		w.WatchEndpoints(&seen)
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- w.Run(ctx, &seen) }()
		<-w.Synced()
		synctest.Wait()
		if err := w.CheckSlices(); err != nil {
			t.Errorf("the watches of Services fail: %v", err)
		}
		if err := w.Check(); err == nil || !strings.Contains(err.Error(), errKind.Error()) {
			t.Errorf("check is %v, want the cause", err)
		}
		select {
		case <-w.EndpointsSynced():
			t.Error("Endpoints count as synced")
		default:
		}
		if got := w.MirrorInputs().Await(canceled(), Versions{endpoints: "1"}, func(error) {}); got {
			t.Error("the watch of Endpoints counts as current")
		}
		if got := w.Inputs().Await(canceled(), Versions{endpoints: "1"}, func(error) {}); !got {
			t.Error("the slices of Services wait for Endpoints")
		}
		cancel()
		if err := <-returned; err != nil {
			t.Error(err)
		}
	})
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// refusingEndpoints refuses requests for Endpoints.
type refusingEndpoints struct{ slicetest.Clientset }

func (c refusingEndpoints) List(ctx context.Context, kind string, options metav1.ListOptions) (runtime.Object, error) {
	if kind == endpoints {
		return nil, errKind
	}
	return c.Clientset.List(ctx, kind, options)
}

func (c refusingEndpoints) Watch(ctx context.Context, kind string, options metav1.ListOptions) (watch.Interface, error) {
	if kind == endpoints {
		return nil, errKind
	}
	return c.Clientset.Watch(ctx, kind, options)
}
