package slicesvc

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
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
	slices := kube.NewSliceClient(cluster.Slices, UpstreamManagedBy)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}
	for i, verb := range []pack.Verb{pack.Create, pack.Update, pack.Delete} {
		_, err := slices.Write(t.Context(), pack.Change{Verb: verb, Slice: slice})
		if pause, asked := kube.RetryAfter(err); !asked || pause != time.Second {
			t.Errorf("%s: %v, want one that asks for a second", verb, err)
		}
		if got := int(writes.Load()); got != i+1 {
			t.Errorf("%d requests after %d writes", got, i+1)
		}
	}
}

func TestToStatus_AThrottledWriteIsToBeTriedAgain(t *testing.T) {
	err := toStatus(fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", 3)))
	if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != APIServerUnreachableReason || rpcerror.RetryAfterOf(err) != 3*time.Second {
		t.Errorf("error is %v, again after %v; want %s after 3s", err, rpcerror.RetryAfterOf(err), APIServerUnreachableReason)
	}
}
