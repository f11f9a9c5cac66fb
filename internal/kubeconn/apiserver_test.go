package kubeconn_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// contentTypes remembers what was sent to the apiserver and what came back.
type contentTypes struct {
	mu   sync.Mutex // guards seen
	seen []string
}

func (c *contentTypes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripperFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.seen = append(c.seen, req.Method+" "+req.Header.Get("Content-Type")+" → "+resp.Header.Get("Content-Type"))
		}
		return resp, err
	})
}

// TestFence_OnARealAPIServer writes a ConfigMap before, during and after a term.
func TestFence_OnARealAPIServer(t *testing.T) {
	namespace := testkit.Namespace(t, testkit.Kube(t))
	cfg, err := kubeconn.RESTConfig(kubeconn.Config{Kubeconfig: testkit.Cluster(t).Kubeconfig()})
	if err != nil {
		t.Fatal(err)
	}
	var types contentTypes
	cfg.Wrap(types.wrap)
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(cfg))
	if err != nil {
		t.Fatal(err)
	}
	maps := kube.CoreV1().ConfigMaps(namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "written"}}

	if _, err := maps.Create(t.Context(), object, metav1.CreateOptions{}); !errors.Is(err, term.ErrNone) {
		t.Errorf("before the term: %v", err)
	}
	if _, err := maps.Get(t.Context(), "written", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the refused object: %v, want it not found", err)
	}
	_, ctx, end := termtest.NewTerm(0, 7)
	defer end()
	if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		t.Errorf("during the term: %v", err)
	}
	end()
	if err := maps.Delete(context.WithoutCancel(ctx), "written", metav1.DeleteOptions{}); !errors.Is(err, term.ErrEnded) {
		t.Errorf("after the term: %v", err)
	}
	if _, err := maps.Get(t.Context(), "written", metav1.GetOptions{}); err != nil {
		t.Errorf("the object written in the term: %v", err)
	}

	const protobuf = "application/vnd.kubernetes.protobuf"
	want := []string{"GET  → " + protobuf, "POST " + protobuf + " → " + protobuf, "GET  → " + protobuf}
	if diff := cmp.Diff(want, types.seen); diff != "" {
		t.Errorf("content types (-want +got):\n%s", diff)
	}
}

func TestProbe_FollowsARealAPIServerDownAndUp(t *testing.T) {
	cluster := testkit.Cluster(t)
	cfg, err := kubeconn.RESTConfig(kubeconn.Config{Kubeconfig: cluster.Kubeconfig()})
	if err != nil {
		t.Fatal(err)
	}
	probe := probing(t, cfg)
	testkit.Eventually(t, 30*time.Second, probe.Check)
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if probe.Check() == nil {
			return fmt.Errorf("%s is down and counts as ready", cfg.Host)
		}
		return nil
	})
	if err := cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 60*time.Second, probe.Check)
}

func TestMain(m *testing.M) { testkit.Main(m) }
