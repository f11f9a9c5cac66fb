package slicesvc

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// A write that is throttled is nothing to sleep on: the pace must know of it.
func TestConnect_ThrottledWriteFailsAtOnce(t *testing.T) {
	var writes atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writes.Add(1)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	cluster, err := Connect(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	slices := apply.NewClient(cluster.Slices, UpstreamManagedBy)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}
	for i, verb := range []pack.Verb{pack.Create, pack.Update, pack.Delete} {
		_, err := slices.Write(t.Context(), pack.Change{Verb: verb, Slice: slice})
		if pause, asked := apply.RetryAfter(err); !asked || pause != time.Second {
			t.Errorf("%s: %v, want one that asks for a second", verb, err)
		}
		if got := int(writes.Load()); got != i+1 {
			t.Errorf("%d requests after %d writes", got, i+1)
		}
	}
}
