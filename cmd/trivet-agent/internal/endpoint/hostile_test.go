package endpoint

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/leasewrite"
)

// A heartbeat says when the write of the kubelet arrived, not when its turn came: the kubelet may
// have ended meanwhile.
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

// A client that gets an error ends to send its body, and waits for the end of the response.
func TestProxy_AnAnswerBeforeTheEndOfTheBodyEnds(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"an error": http.StatusTooManyRequests, "a success": http.StatusOK} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(code)
				_, _ = io.WriteString(w, "early")
			}))
			client := fx.kubelet()
			client.Timeout = 10 * time.Second
			body, more := io.Pipe() // it has a begin and no end
			defer more.Close()
			go func() { _, _ = more.Write([]byte("{")) }()
			response, text, err := fx.try(client, http.MethodPatch, "/api/v1/nodes/"+node+"/status", body)
			if err != nil || response.StatusCode != code || text != "early" {
				t.Errorf("%v, %q, %v; want %d and the whole body", response, text, err, code)
			}
		})
	}
}

// A request target that no server takes says nothing of the kube-apiservers. CONNECT asks for a
// tunnel to any address.
func TestServe_OnlyPathsPass(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	pair, err := tls.LoadX509KeyPair(f.cluster.CertFile, f.cluster.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"GET https:a/b", "CONNECT 10.0.0.1:1", "CONNECT /api"} {
		dialer := tls.Dialer{Config: f.clientTLS(&pair)}
		conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(f.url, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		_, _ = response.Body.Close(), conn.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s, want 400", line, response.Status)
		}
	}
}

// leasesvc accepts heartbeats. Readers of the Lease object, such as the node-lifecycle controller,
// see only whether leasesvc writes it.
func TestLease_PassesIfNothingRenewsTheRealLease(t *testing.T) {
	t.Parallel()
	const seconds = 6
	for name, renewing := range map[string]bool{"leasesvc writes the Lease": true, "leasesvc does not write the Lease": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			w := newWriter(f, leasewrite.Protobuf)
			w.held.Spec.LeaseDurationSeconds = new(int32(seconds))
			w.mustRenew()
			before := f.leases.Count(http.MethodPut)
			written, longest := time.Now(), time.Duration(0)
			for end := time.Now().Add(seconds * time.Second * 3 / 2); time.Now().Before(end); {
				if renewing && time.Since(written) > seconds*time.Second/2 {
					f.leases.Write(node, func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()} })
					written = time.Now()
				}
				w.mustRenew()
				longest = max(longest, time.Since(f.leases.Get(node).Spec.RenewTime.Time))
				time.Sleep(100 * time.Millisecond) // as a kubelet does
			}
			writes := f.leases.Count(http.MethodPut) - before
			switch {
			case renewing && writes > 0:
				t.Errorf("%d writes beside a leasesvc that writes, want 0", writes)
			case !renewing && longest > seconds*time.Second:
				t.Errorf("the real Lease was not renewed for %v, want at most its duration", longest)
			case !renewing && writes > 3:
				t.Errorf("%d writes in one and a half durations, want those that keep the Lease alive", writes)
			}
			if reads := f.leases.Count(http.MethodGet); reads > 12 {
				t.Errorf("%d reads in one and a half durations", reads)
			}
		})
	}
}

// No kube-apiserver can say whether the Lease was renewed: heartbeats go on.
func TestLease_AReadThatFailsIsNoReasonToPass(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	w.held.Spec.LeaseDurationSeconds = new(int32(2))
	w.mustRenew()
	f.server.Kill()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		w.mustRenew()
		time.Sleep(100 * time.Millisecond) // as a kubelet does
	}
}
