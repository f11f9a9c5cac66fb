package writebackcontroller_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// counter counts the requests that pass through it.
type counter struct {
	next     http.RoundTripper
	requests *atomic.Int32
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.next.RoundTrip(r)
}

func TestWrite_WithoutNamespaceFailsAtOnce(t *testing.T) {
	f := newLeaseFixture(t)
	f.addNode()
	var requests atomic.Int32
	config := testkit.Cluster(t).RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{next: next, requests: &requests} })
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f.writer, f.namespace = writebackcontroller.NewLeaseWriter(kube.CoordinationV1(), f.index), "no-such-namespace"
	_, verb, err := f.write(writeback.LeaseRecord{})
	if verb != writebackcontroller.VerbCreate || !apierrors.IsNotFound(err) {
		t.Errorf("verb %s, error %v; want a create that did not find its namespace", verb, err)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want a get and a create: nobody overtook this writer", n)
	}
}
