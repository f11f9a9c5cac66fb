package endpoint

import (
	"bytes"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/leasewrite"
)

// A heartbeat says when the kubelet wrote, not when the endpoint got round to its write: the kubelet
// may have ended meanwhile.
func TestLease_ABeatIsAsOldAsItsWrite(t *testing.T) {
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	f.stop()
	f.start()
	w.client = f.kubelet()
	f.server.Freeze() // the Lease is unknown, and its read takes long
	defer f.server.Thaw()
	body := leaseBody(t, w)
	var group sync.WaitGroup
	for range 2 { // the second write waits for the first one
		group.Go(func() {
			_, _, _ = f.try(w.client, http.MethodPut, leasesPath+"/"+node, bytes.NewReader(body), "Content-Type", leasewrite.Protobuf, "Accept", leasewrite.Protobuf)
		})
	}
	sent := time.Now()
	group.Wait()
	f.leasesvc.mu.Lock()
	defer f.leasesvc.mu.Unlock()
	if f.leasesvc.reports == 0 {
		t.Fatal("no heartbeat was sent")
	}
	if late := f.leasesvc.observed.Sub(sent); late > time.Second {
		t.Errorf("the heartbeat says that the kubelet was seen %v after its last write", late)
	}
}

func leaseBody(t *testing.T, w *writer) []byte {
	t.Helper()
	w.held.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	body, err := leasewrite.EncodeLease(leasewrite.Protobuf, w.held)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
