package kubeconn_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
)

// apiserver is an HTTP server that answers each request with success and records it.
type apiserver struct {
	*httptest.Server
	mu   sync.Mutex // guards seen
	seen []string   // "VERB /path"
}

func newAPIServer(t *testing.T) *apiserver {
	t.Helper()
	server := &apiserver{}
	server.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.mu.Lock()
		server.seen = append(server.seen, r.Method+" "+r.URL.Path)
		server.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}))
	t.Cleanup(server.Close)
	return server
}

func (s *apiserver) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// guarded are the options of a delete that names its object's UID.
func guarded() metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("u")}
}

// fenced returns a client of host through a fence.
func fenced(t *testing.T, host string) kubernetes.Interface {
	t.Helper()
	return fencedAs(t, host, runtime.ContentTypeJSON)
}

// fencedAs is fenced with an encoding of bodies.
func fencedAs(t *testing.T, host, contentType string) kubernetes.Interface {
	t.Helper()
	cfg := kubeconn.Fence(&rest.Config{Host: host, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: contentType}})
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	kube, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// writes are all methods by which a typed client changes an object.
func writes(kube kubernetes.Interface) map[string]func(context.Context) error {
	pods := kube.CoreV1().Pods("ns")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", ResourceVersion: "1"}}
	return map[string]func(context.Context) error{
		"POST /api/v1/namespaces/ns/pods": func(ctx context.Context) error {
			_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
			return err
		},
		"PUT /api/v1/namespaces/ns/pods/p": func(ctx context.Context) error {
			_, err := pods.Update(ctx, pod, metav1.UpdateOptions{})
			return err
		},
		"PUT /api/v1/namespaces/ns/pods/p/status": func(ctx context.Context) error {
			_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			return err
		},
		"PATCH /api/v1/namespaces/ns/pods/p": func(ctx context.Context) error {
			_, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"1"}}`), metav1.PatchOptions{})
			return err
		},
		"PATCH /api/v1/namespaces/ns/pods/applied": func(ctx context.Context) error {
			_, err := pods.Apply(ctx, corev1apply.Pod("applied", "ns").WithResourceVersion("1"), metav1.ApplyOptions{FieldManager: "test"})
			return err
		},
		"DELETE /api/v1/namespaces/ns/pods/p": func(ctx context.Context) error {
			return pods.Delete(ctx, "p", guarded())
		},
		"DELETE /api/v1/namespaces/ns/pods": func(ctx context.Context) error {
			return pods.DeleteCollection(ctx, guarded(), metav1.ListOptions{})
		},
	}
}

func TestFence_RefusesEveryWriteWithoutATerm(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	for request, write := range writes(fenced(t, server.URL)) {
		err := write(t.Context())
		if !errors.Is(err, term.ErrNone) {
			t.Errorf("%s: %v, want it refused with %v", request, err, term.ErrNone)
		} else if !strings.Contains(err.Error(), "refused "+request) {
			t.Errorf("the refusal does not name %s: %v", request, err)
		}
	}
	if got := server.requests(); len(got) != 0 {
		t.Errorf("the apiserver was sent %v", got)
	}
}

func TestFence_SendsEveryWriteUnderALiveTerm(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	var want []string
	for request, write := range writes(fenced(t, server.URL)) {
		if err := write(ctx); err != nil {
			t.Errorf("%s: %v", request, err)
		}
		want = append(want, request)
	}
	got := server.requests()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the apiserver was sent (-want +got):\n%s", diff)
	}
}

func TestFence_RefusesEveryWriteUnderAnEndedTerm(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	_, ctx, end := termtest.NewTerm(3, 7)
	end()
	for request, write := range writes(fenced(t, server.URL)) {
		if err := write(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with the term's ended context: %v", request, err)
		}
		// A context that outlives the term is the case the fence is for.
		err := write(context.WithoutCancel(ctx))
		if !errors.Is(err, term.ErrEnded) {
			t.Errorf("%s: %v, want it refused with %v", request, err, term.ErrEnded)
		} else if !strings.Contains(err.Error(), "refused "+request) || !strings.Contains(err.Error(), "shard 3 at epoch 7") {
			t.Errorf("the refusal does not name request and term: %v", err)
		}
	}
	if got := server.requests(); len(got) != 0 {
		t.Errorf("the apiserver was sent %v", got)
	}
}

func TestFence_RefusesWritesThatDoNotNameTheirVersion(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		pods := fencedAs(t, server.URL, contentType).CoreV1().Pods("ns")
		bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
		for verb, write := range map[string]func() error{
			"PUT": func() error { _, err := pods.Update(ctx, bare, metav1.UpdateOptions{}); return err },
			"PATCH": func() error {
				_, err := pods.Patch(ctx, "p", types.StrategicMergePatchType, []byte(`{"metadata":{"uid":"u"}}`), metav1.PatchOptions{})
				return err
			},
			"PATCH apply": func() error {
				_, err := pods.Apply(ctx, corev1apply.Pod("p", "ns"), metav1.ApplyOptions{FieldManager: "test"})
				return err
			},
			"PATCH list": func() error {
				_, err := pods.Patch(ctx, "p", types.JSONPatchType, []byte(`[]`), metav1.PatchOptions{})
				return err
			},
			"DELETE": func() error {
				version := "1"
				return pods.Delete(ctx, "p", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
			},
			"PUT of version 0": func() error {
				any := bare.DeepCopy()
				any.ResourceVersion = "0"
				_, err := pods.Update(ctx, any, metav1.UpdateOptions{})
				return err
			},
			"PATCH in another case": func() error {
				_, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"resourceversion":"1"}}`), metav1.PatchOptions{})
				return err
			},
			"POST of an eviction": func() error {
				return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: bare.ObjectMeta})
			},
			"DELETE collection": func() error {
				return pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			},
		} {
			if err := write(); !errors.Is(err, kubeconn.ErrUnguarded) {
				t.Errorf("%s as %s: %v, want it refused with %v", verb, contentType, err, kubeconn.ErrUnguarded)
			}
		}
	}
	if got := server.requests(); len(got) != 0 {
		t.Errorf("the apiserver was sent %v", got)
	}
}

// The check reads the body, so the server must still receive all of it, in both encodings.
func TestFence_SendsTheBodyOfAGuardedWrite(t *testing.T) {
	t.Parallel()
	bodies := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- body
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}))
	defer server.Close()
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", ResourceVersion: "41"}, Spec: corev1.PodSpec{NodeName: "the-node"}}
		if _, err := fencedAs(t, server.URL, contentType).CoreV1().Pods("ns").Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Errorf("%s: %v", contentType, err)
		}
		if body := receive(t, bodies); !strings.Contains(string(body), "the-node") || !strings.Contains(string(body), "41") {
			t.Errorf("%s: the apiserver received %q", contentType, body)
		}
	}
}

func TestFence_AllowsReadsWithoutATerm(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	kube := fenced(t, server.URL)
	if err := kube.CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
	if err := kube.CoreV1().RESTClient().Verb("OPTIONS").AbsPath("/api/v1/pods").Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
	if err := kube.CoreV1().RESTClient().Verb("HEAD").AbsPath("/api/v1/pods").Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
	want := []string{"GET /api/v1/pods", "OPTIONS /api/v1/pods", "HEAD /api/v1/pods"}
	if diff := cmp.Diff(want, server.requests()); diff != "" {
		t.Errorf("the apiserver was sent (-want +got):\n%s", diff)
	}
}

func TestFence_AllowsEventsAndReviewsWithoutATerm(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	kube := fenced(t, server.URL+"/behind/a/proxy")
	ctx := t.Context()
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "ns"}}
	_, err := kube.CoreV1().Events("ns").Create(ctx, event, metav1.CreateOptions{})
	_, err2 := kube.CoreV1().Events("ns").Patch(ctx, "e", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	_, err3 := kube.EventsV1().Events("ns").Create(ctx, &eventsv1.Event{}, metav1.CreateOptions{})
	_, err4 := kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"POST /behind/a/proxy/api/v1/namespaces/ns/events",
		"PATCH /behind/a/proxy/api/v1/namespaces/ns/events/e",
		"POST /behind/a/proxy/apis/events.k8s.io/v1/namespaces/ns/events",
		"POST /behind/a/proxy/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
	}
	if diff := cmp.Diff(want, server.requests()); diff != "" {
		t.Errorf("the apiserver was sent (-want +got):\n%s", diff)
	}
	if err := kube.CoreV1().Events("ns").Delete(ctx, "e", metav1.DeleteOptions{}); !errors.Is(err, term.ErrNone) {
		t.Errorf("deleting an Event: %v", err)
	}
}

func TestFence_EndOfTermCancelsWriteInFlight(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	left := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server notices a lost client only after it has read the body
		close(arrived)
		<-r.Context().Done()
		close(left)
	}))
	defer server.Close()
	kube := fenced(t, server.URL)
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	result := make(chan error, 1)
	go func() {
		// Without the fence nothing would ever end this request.
		result <- kube.CoreV1().Pods("ns").Delete(context.WithoutCancel(ctx), "p", guarded())
	}()
	receive(t, arrived)
	end()
	err := receive(t, result)
	if !errors.Is(err, term.ErrEnded) || !strings.Contains(err.Error(), "cut off DELETE /api/v1/namespaces/ns/pods/p, its outcome is unknown") {
		t.Errorf("the write ended with %v", err)
	}
	receive(t, left)
}

func TestFence_EndOfTermCancelsResponseBeingRead(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush() // the header alone
		<-r.Context().Done()
	}))
	defer server.Close()
	client, err := rest.HTTPClientFor(kubeconn.Fence(&rest.Config{Host: server.URL}))
	if err != nil {
		t.Fatal(err)
	}
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, server.URL+"/api/v1/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	end()
	result := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(resp.Body)
		result <- err
	}()
	if err := receive(t, result); err == nil {
		t.Error("the answer went on after the term")
	}
}

func TestFence_PassesOnOtherErrors(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.Close()
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	err := fenced(t, server.URL).CoreV1().Pods("ns").Delete(ctx, "p", guarded())
	if err == nil || errors.Is(err, term.ErrEnded) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("an apiserver that is down gives %v", err)
	}
}

func TestFence_ClosesTheBodyItDoesNotSend(t *testing.T) {
	t.Parallel()
	client, err := rest.HTTPClientFor(kubeconn.Fence(&rest.Config{Host: "127.0.0.1:1"}))
	if err != nil {
		t.Fatal(err)
	}
	body := &closeCounter{Reader: strings.NewReader("{}")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:1/api/v1/pods", body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Transport.RoundTrip(req); !errors.Is(err, term.ErrNone) {
		t.Errorf("error %v", err)
	}
	if body.closed != 1 {
		t.Errorf("body closed %d times", body.closed)
	}
}

type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error {
	c.closed++
	return nil
}

func TestFence_KeepsTheConfigItIsGivenOpen(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	open := &rest.Config{Host: server.URL}
	kubeconn.Fence(open)
	kube, err := kubernetes.NewForConfig(open)
	if err != nil {
		t.Fatal(err)
	}
	if err := kube.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Errorf("Fence closed the original config: %v", err)
	}
}

func TestFence_WrapsAroundEarlierWrappers(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	cfg := &rest.Config{Host: server.URL}
	calls := 0
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripperFunc(func(req *http.Request) (*http.Response, error) {
			calls++
			return next.RoundTrip(req)
		})
	})
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if err := kube.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); !errors.Is(err, term.ErrNone) || calls != 0 {
		t.Errorf("a refused request: %v, reached the inner wrapper %d times", err, calls)
	}
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	if err := kube.CoreV1().Pods("ns").Delete(ctx, "p", guarded()); err != nil || calls != 1 {
		t.Errorf("a legal request: %v, reached the inner wrapper %d times", err, calls)
	}
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// receive waits for a value, with a timeout.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(10 * time.Second):
		t.Fatal("nothing happened for 10s")
		panic("unreachable")
	}
}
