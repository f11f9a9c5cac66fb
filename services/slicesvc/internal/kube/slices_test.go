package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unsafe"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func sample() *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), "web-1", slicetest.Pods(0, 1))
}

func TestWrite_HasPreconditions(t *testing.T) {
	t.Parallel()
	slice := sample()
	client := fake.NewClientset(slice)
	writer := kube.NewSliceClient(slicetest.Clientset{Interface: client}, slicetest.ManagedBy)
	for _, verb := range []planned.Verb{planned.Update, planned.Delete} {
		if _, err := writer.Write(t.Context(), pack.Change{Verb: verb, Slice: slice}); err != nil {
			t.Fatal(err)
		}
	}
	actions := client.Actions()
	if len(actions) != 2 {
		t.Fatalf("actions are %v, want two", actions)
	}
	updated := actions[0].(clienttesting.UpdateAction).GetObject().(*discoveryv1.EndpointSlice)
	if updated.ResourceVersion != slice.ResourceVersion {
		t.Errorf("update carries resourceVersion %q, want %q", updated.ResourceVersion, slice.ResourceVersion)
	}
	want := &metav1.Preconditions{UID: &slice.UID, ResourceVersion: &slice.ResourceVersion}
	if diff := gocmp.Diff(want, actions[1].(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions); diff != "" {
		t.Errorf("preconditions of the deletion (-want +got):\n%s", diff)
	}
}

func TestWrite_ReturnsTheStoredSlice(t *testing.T) {
	t.Parallel()
	slice := sample()
	client := fake.NewClientset()
	stored, err := kube.NewSliceClient(slicetest.Clientset{Interface: client}, slicetest.ManagedBy).Write(t.Context(), pack.Change{Verb: planned.Create, Slice: slice})
	if err != nil {
		t.Fatal(err)
	}
	bookkeeping := gocmp.Options{
		cmpopts.IgnoreTypes(metav1.TypeMeta{}),
		cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields"),
	}
	if diff := gocmp.Diff(slice, stored, bookkeeping); diff != "" {
		t.Errorf("stored (-sent +got):\n%s", diff)
	}
}

// storingServer answers a write with the slice as it was stored, in the encoding of the request.
// alter changes the slice, as admission may.
func storingServer(t *testing.T, contentType string, alter func(*discoveryv1.EndpointSlice)) *kube.SliceClient {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
		body, err := io.ReadAll(r.Body)
		var stored discoveryv1.EndpointSlice
		if err == nil {
			_, _, err = info.Serializer.Decode(body, nil, &stored)
		}
		if err != nil || !ok || r.Header.Get("Content-Type") != contentType {
			t.Errorf("request in %q: %v", r.Header.Get("Content-Type"), err)
		}
		stored.ResourceVersion = "77"
		alter(&stored)
		w.Header().Set("Content-Type", contentType)
		stored.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
		if err := info.Serializer.Encode(&stored, w); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	requests, err := kube.NewSliceRequests(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: contentType}})
	if err != nil {
		t.Fatal(err)
	}
	return kube.NewSliceClient(requests, slicetest.ManagedBy)
}

// A stored slice shares its annotations and endpoints with the one that was sent: an Endpoints
// object may have large annotations and very many slices, and a Service many endpoints.
func TestWrite_KeepsNoCopyOfWhatWasStored(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		sent := sample()
		sent.Annotations = map[string]string{"large": strings.Repeat("x", 1000)}
		client := storingServer(t, contentType, func(*discoveryv1.EndpointSlice) {})
		stored, err := client.Write(t.Context(), pack.Change{Verb: planned.Update, Slice: sent})
		if err != nil {
			t.Fatal(err)
		}
		if stored.ResourceVersion != "77" || unsafe.StringData(stored.Annotations["large"]) != unsafe.StringData(sent.Annotations["large"]) {
			t.Errorf("%s: stored version %s has a copy of the annotations", contentType, stored.ResourceVersion)
		}
		if shared := &stored.Endpoints[0] == &sent.Endpoints[0]; shared != (contentType == runtime.ContentTypeProtobuf) {
			t.Errorf("%s: the stored slice shares its endpoints: %t", contentType, shared)
		}
	}
}

// What admission changes in a slice is in the result.
func TestWrite_ReturnsWhatAdmissionChanged(t *testing.T) {
	t.Parallel()
	port := int32(9090)
	for name, alter := range map[string]func(*discoveryv1.EndpointSlice){
		"an endpoint less": func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[1:] },
		"no endpoints":     func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil },
		"a condition":      func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(bool) },
		"a port":           func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = &port },
		"no ports":         func(s *discoveryv1.EndpointSlice) { s.Ports = nil },
		"a label":          func(s *discoveryv1.EndpointSlice) { s.Labels["by"] = "policy" },
		"an annotation":    func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"by": "policy"} },
	} {
		for _, contentType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
			sent := slicetest.Slice(slicetest.Service("web"), "web-1", slicetest.Pods(0, 2))
			want := sent.DeepCopy()
			want.ResourceVersion = "77"
			alter(want)
			stored, err := storingServer(t, contentType, alter).Write(t.Context(), pack.Change{Verb: planned.Update, Slice: sent})
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(want, stored, cmpopts.IgnoreTypes(metav1.TypeMeta{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, contentType, diff)
			}
		}
	}
}

func TestWrite_ClassifiesErrors(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	conflict := apierrors.NewConflict(resource, "web-1", errors.New("changed"))
	exists := apierrors.NewAlreadyExists(resource, "web-1")
	missing := apierrors.NewNotFound(resource, "web-1")
	busy := apierrors.NewTooManyRequests("busy", 1)
	terminating := &apierrors.StatusError{ErrStatus: metav1.Status{
		Code:    http.StatusForbidden,
		Reason:  metav1.StatusReasonForbidden,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
	}}
	for name, c := range map[string]struct {
		verb   planned.Verb
		answer error
		want   error
	}{
		"create: exists":                {verb: planned.Create, answer: exists, want: kube.ErrConflict},
		"create: namespace terminating": {verb: planned.Create, answer: terminating, want: kube.ErrNamespaceTerminating},
		"create: busy":                  {verb: planned.Create, answer: busy, want: busy},
		"create: no such namespace":     {verb: planned.Create, answer: missing, want: missing},
		"update: changed":               {verb: planned.Update, answer: conflict, want: kube.ErrConflict},
		"update: gone":                  {verb: planned.Update, answer: missing, want: kube.ErrConflict},
		"update: forbidden":             {verb: planned.Update, answer: terminating, want: terminating},
		"delete: changed":               {verb: planned.Delete, answer: conflict, want: kube.ErrConflict},
		"delete: gone":                  {verb: planned.Delete, answer: missing},
		"delete: timeout":               {verb: planned.Delete, answer: context.DeadlineExceeded, want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor(string(c.verb), "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, c.answer
			})
			_, err := kube.NewSliceClient(slicetest.Clientset{Interface: client}, slicetest.ManagedBy).Write(t.Context(), pack.Change{Verb: c.verb, Slice: sample()})
			if !errors.Is(err, c.want) {
				t.Errorf("error is %v, want %v", err, c.want)
			}
			if c.want != nil && !errors.Is(err, c.answer) {
				t.Errorf("error %v hides its cause %v", err, c.answer)
			}
		})
	}
}

func TestRefused_NeedsAnAnswerThatProvesIt(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"changed":           {err: apierrors.NewConflict(resource, "web-1", errors.New("changed")), want: true},
		"not as planned":    {err: kube.ErrConflict, want: true},
		"forbidden":         {err: apierrors.NewForbidden(resource, "web-1", errors.New("no")), want: true},
		"too many requests": {err: apierrors.NewTooManyRequests("later", 1), want: true},
		"server timeout":    {err: apierrors.NewTimeoutError("etcd is slow", 1)},
		"internal error":    {err: apierrors.NewInternalError(errors.New("etcd"))},
		"client timeout":    {err: context.DeadlineExceeded},
		"connection reset":  {err: errors.New("connection reset by peer")},
	} {
		if got := kube.Refused(fmt.Errorf("update: %w", c.err)); got != c.want {
			t.Errorf("%s: refused is %t, want %t", name, got, c.want)
		}
	}
}

func TestRetryAfter_ReturnsThePause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err       error
		pause     time.Duration
		requested bool
	}{
		"busy":                 {err: apierrors.NewTooManyRequests("later", 3), pause: 3 * time.Second, requested: true},
		"busy, no Retry-After": {err: apierrors.NewTooManyRequests("later", 0), requested: true},
		"refused":              {err: apierrors.NewBadRequest("no")},
		"busy webhook":         {err: fmt.Errorf("create: %w", apierrors.NewTooManyRequests(`admission webhook "policy.example" denied the request: later`, 3))},
		"connection reset":     {err: context.DeadlineExceeded},
		"no error":             {},
	} {
		if pause, requested := kube.RetryAfter(c.err); pause != c.pause || requested != c.requested {
			t.Errorf("%s: pause %v (%t), want %v (%t)", name, pause, requested, c.pause, c.requested)
		}
	}
}
