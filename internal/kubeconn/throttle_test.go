package kubeconn_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
)

// refusing is a kube-apiserver that answers each write in one way and counts the writes.
func refusing(t *testing.T, code int, retryAfter string) (cfg *rest.Config, writes *atomic.Int32) {
	t.Helper()
	writes = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writes.Add(1)
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}, writes
}

func promptClient(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(kubeconn.FailFastOnThrottle(cfg, coordinationv1.Resource("leases")))
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// A client that sleeps delays urgent writes and hides the overload from its caller.
func TestFailFastOnThrottle_ThrottledWriteFailsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		code       int
		retryAfter string
		throttled  bool
		seconds    int
	}{
		"throttled":                 {code: http.StatusTooManyRequests, retryAfter: "20", throttled: true, seconds: 20},
		"throttled without a pause": {code: http.StatusTooManyRequests, retryAfter: "0", throttled: true},
		"out of order":              {code: http.StatusServiceUnavailable, retryAfter: "3600", seconds: 3600},
		"nothing is said":           {code: http.StatusInternalServerError},
		"a date":                    {code: http.StatusServiceUnavailable, retryAfter: "Fri, 20 Nov 2026 09:00:00 GMT"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, writes := refusing(t, c.code, c.retryAfter)
			leases := promptClient(t, cfg).CoordinationV1().Leases("agents")
			begin := time.Now()
			_, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			if took := time.Since(begin); took > 15*time.Second || writes.Load() != 1 {
				t.Errorf("%d writes in %v, want one and no sleep", writes.Load(), took)
			}
			var status apierrors.APIStatus
			if !errors.As(err, &status) || int(status.Status().Code) != c.code {
				t.Fatalf("error %v, want one that was answered with %d", err, c.code)
			}
			if got := apierrors.IsTooManyRequests(err); got != c.throttled {
				t.Errorf("throttled %v, want %v: %v", got, c.throttled, err)
			}
			if got, _ := apierrors.SuggestsClientDelay(err); got != c.seconds {
				t.Errorf("asked for a pause of %d s, want %d", got, c.seconds)
			}
			if err := leases.Delete(t.Context(), "a", metav1.DeleteOptions{}); err == nil || writes.Load() != 2 {
				t.Errorf("%d writes after a deletion that ended with %v, want two", writes.Load(), err)
			}
		})
	}
}

// A Status tells more than the code: an admission webhook may answer 429 for one object.
func TestFailFastOnThrottle_StatusIsTheError(t *testing.T) {
	writes := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writes++
		refused := apierrors.NewTooManyRequests(`admission webhook "policy.example" denied the request: later`, 20).Status()
		refused.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		w.Header().Set("Retry-After", "20")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		if err := json.NewEncoder(w).Encode(refused); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	leases := promptClient(t, &rest.Config{Host: server.URL}).CoordinationV1().Leases("agents")
	begin := time.Now()
	_, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if took := time.Since(begin); took > 15*time.Second || writes != 1 {
		t.Errorf("%d writes in %v, want one and no sleep", writes, took)
	}
	if seconds, _ := apierrors.SuggestsClientDelay(err); !kubeconn.OfWebhook(err) || !apierrors.IsTooManyRequests(err) || seconds != 20 {
		t.Errorf("error is %v, want the refusal of the webhook", err)
	}
}

func TestFailFastOnThrottle_WritesOfOtherResourcesAreRetried(t *testing.T) {
	cfg, writes := refusing(t, http.StatusTooManyRequests, "0")
	configMaps := promptClient(t, cfg).CoreV1().ConfigMaps("leases")
	if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err == nil || writes.Load() < 2 {
		t.Errorf("%d writes that ended with %v, want several", writes.Load(), err)
	}
}
