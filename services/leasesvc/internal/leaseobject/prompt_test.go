package leaseobject_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
)

// refusing is a kube-apiserver that has no Leases and answers every write in one way.
func refusing(t *testing.T, code int, retryAfter string) (cfg *rest.Config, writes *atomic.Int32) {
	t.Helper()
	writes = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.NotFound(w, r)
			return
		}
		writes.Add(1)
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}, writes
}

// A writer that sleeps is of no use to who becomes urgent meanwhile, and one that does not tell of being throttled goes on as
// if nothing were.
func TestPrompt_ThrottledWriteFailsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		code       int
		retryAfter string
		throttled  bool
		seconds    int
	}{
		"throttled":                 {code: http.StatusTooManyRequests, retryAfter: "1", throttled: true, seconds: 1},
		"throttled without a pause": {code: http.StatusTooManyRequests, retryAfter: "0", throttled: true},
		"out of order":              {code: http.StatusServiceUnavailable, retryAfter: "3600", seconds: 3600},
		"nothing is said":           {code: http.StatusInternalServerError},
		"a date":                    {code: http.StatusServiceUnavailable, retryAfter: "Fri, 20 Nov 2026 09:00:00 GMT"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, writes := refusing(t, c.code, c.retryAfter)
			kube, err := kubernetes.NewForConfig(leaseobject.Prompt(cfg))
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, verb, err := leaseobject.NewWriter(kube.CoordinationV1(), nil).Write(t.Context(), leaseobject.Renewal{
				Namespace: "agents", Name: "a", Class: "agent", Duration: time.Second, RenewTime: begin,
			})
			if took := time.Since(begin); took > 900*time.Millisecond || writes.Load() != 1 {
				t.Errorf("%d writes in %v, want one and no sleep", writes.Load(), took)
			}
			var status apierrors.APIStatus
			if verb != leaseobject.Create || !errors.As(err, &status) || int(status.Status().Code) != c.code {
				t.Fatalf("verb %s, error %v; want a create that was answered with %d", verb, err, c.code)
			}
			if got := apierrors.IsTooManyRequests(err); got != c.throttled {
				t.Errorf("throttled %v, want %v: %v", got, c.throttled, err)
			}
			if got, _ := apierrors.SuggestsClientDelay(err); got != c.seconds {
				t.Errorf("asked for a pause of %d s, want %d", got, c.seconds)
			}
		})
	}
}
