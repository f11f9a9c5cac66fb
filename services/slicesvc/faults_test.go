package slicesvc_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// faultInjector is between a replica and kube-apiserver: it pauses watches and refuses writes.
type faultInjector struct {
	pause    pausePoint
	refusing atomic.Bool
	refused  atomic.Int64
	creates  atomic.Int64 // attempts

	mu     sync.Mutex // guards random
	random *rand.Rand
}

func newFaultInjector(seed uint64) *faultInjector {
	return &faultInjector{random: rand.New(rand.NewPCG(seed, 0))}
}

// wrap returns a copy of config whose requests pass the faultInjector.
func (x *faultInjector) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &faultyTransport{faults: x, next: next} })
	return config
}

type faultyTransport struct {
	faults *faultInjector
	next   http.RoundTripper
}

func (r *faultyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		answer, err := r.next.RoundTrip(req)
		if err == nil && req.URL.Query().Get("watch") != "" {
			answer.Body = pausableBody{ReadCloser: answer.Body, pause: &r.faults.pause}
		}
		return answer, err
	}
	if !writesSlice(req) {
		return r.next.RoundTrip(req)
	}
	if req.Method == http.MethodPost {
		r.faults.creates.Add(1)
	}
	if status := r.faults.drawStatus(); status != 0 {
		return refuse(req, status), nil
	}
	return r.next.RoundTrip(req)
}

// drawStatus returns the status that refuses a write: too many requests, a conflict, or a server
// error. 0 lets it pass.
func (x *faultInjector) drawStatus() int {
	if !x.refusing.Load() {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.random.IntN(2) == 0 {
		return 0
	}
	x.refused.Add(1)
	return []int{http.StatusTooManyRequests, http.StatusConflict, http.StatusInternalServerError}[x.random.IntN(3)]
}

func refuse(req *http.Request, status int) *http.Response {
	const body = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused by the test","reason":%q,"code":%d}`
	reason := map[int]metav1.StatusReason{
		http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusConflict: metav1.StatusReasonConflict,
		http.StatusInternalServerError: metav1.StatusReasonInternalError,
	}[status]
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:  http.Header{"Content-Type": []string{"application/json"}},
		Body:    io.NopCloser(strings.NewReader(fmt.Sprintf(body, reason, status))),
		Request: req,
	}
}

// pausePoint blocks calls of pass while its lock is held.
type pausePoint struct {
	lock    sync.RWMutex
	blocked atomic.Int64 // calls that had to wait
}

func (g *pausePoint) pass() {
	if !g.lock.TryRLock() {
		g.blocked.Add(1)
		g.lock.RLock()
	}
	g.lock.RUnlock()
}

// pausableBody passes its pausePoint after each read.
type pausableBody struct {
	io.ReadCloser
	pause *pausePoint
}

func (b pausableBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	b.pause.pass()
	return n, err
}

// changeAnySlice deletes a slice or its endpoints, as another writer.
func (f *replicasFixture) changeAnySlice() {
	f.t.Helper()
	slices := f.clients.DiscoveryV1().EndpointSlices(f.namespace)
	list, err := slices.List(f.ctx(), metav1.ListOptions{})
	f.must(err)
	if len(list.Items) == 0 {
		return
	}
	slice := &list.Items[f.random.IntN(len(list.Items))]
	if f.random.IntN(2) == 0 {
		err = slices.Delete(f.ctx(), slice.Name, metav1.DeleteOptions{})
	} else {
		slice.Endpoints = []discoveryv1.Endpoint{}
		_, err = slices.Update(f.ctx(), slice, metav1.UpdateOptions{})
	}
	if err != nil {
		f.t.Logf("cannot change slice: %v", err) // a replica was faster
	}
}

// churnUntil makes changes until a condition holds: a replica that joins again writes nothing at
// first.
func (f *replicasFixture) churnUntil(condition func() error) {
	f.t.Helper()
	testkit.Eventually(f.t, testTimeout, func() error {
		err := condition()
		if err != nil {
			f.churn(1)
		}
		return err
	})
}

func requireSome(what string, count int64) error {
	if count == 0 {
		return fmt.Errorf("no %s yet", what)
	}
	return nil
}

func TestFaults_SlicesAreExactAfterFaults(t *testing.T) {
	t.Parallel()
	f := newReplicasFixture(t)
	f.node("a", "zone-a")
	etcd := testkit.Etcd(t)
	since := revision(t, etcd)
	first, second := newFaultInjector(1), newFaultInjector(2)
	one := f.joinThrough("replica-1", first)
	two := f.joinThrough("replica-2", second)
	f.churn(40)
	for range 3 {
		first.pause.lock.Lock() // replica-1 gets no events and writes from its old cache
		f.churn(20)
		f.revokeSession(two) // the shards of replica-2 move to replica-1
		f.churn(20)
		f.changeAnySlice()
		testkit.Eventually(t, testTimeout, func() error { return requireSome("paused events", first.pause.blocked.Load()) })
		first.pause.lock.Unlock()

		first.refusing.Store(true)
		second.refusing.Store(true)
		f.churn(20)
		f.revokeSession(one)
		f.changeAnySlice()
		f.churn(20)
		f.churnUntil(func() error {
			return errors.Join(requireSome("writes of replica-1 refused", first.refused.Load()), requireSome("writes of replica-2 refused", second.refused.Load()))
		})
		first.refusing.Store(false)
		second.refusing.Store(false)
	}
	for _, r := range []*testReplica{one, two} {
		testkit.Eventually(t, testTimeout, func() error {
			return errors.Join(r.candidate.Check(), f.checkHolds(r), f.checkSlices(), f.checkNoPlan(r))
		})
	}
	f.audit.check(t, numShards, claimsSince(t, etcd, f.cluster, since))
}

// A terminating namespace refuses new slices until it is gone. Retries must be rare. The test runs
// alone on the control plane, because its replica sees all namespaces.
func TestFaults_TerminatingNamespaceCausesFewRetries(t *testing.T) {
	f := newReplicasFixture(t)
	node := f.node("a", "zone-a")
	through := newFaultInjector(1)
	replica := f.joinWith("replica-1", through.wrap(testkit.Cluster(t).RESTConfig()))
	f.churn(20)
	testkit.Eventually(t, testTimeout, func() error { return errors.Join(f.checkSlices(), f.checkNoPlan(replica)) })

	terminating := &fixture{t: t, clients: f.clients, namespace: testkit.Namespace(t, f.clients)}
	terminating.service()
	terminating.pod("web-0", node, []string{"10.2.0.1"})
	terminating.expect("IPv4 http 8080/TCP: web-0 10.2.0.1 zone-a RS")
	f.must(f.clients.CoreV1().Namespaces().Delete(f.ctx(), terminating.namespace, metav1.DeleteOptions{}))
	before := through.creates.Load()
	slices := f.clients.DiscoveryV1().EndpointSlices(terminating.namespace)
	f.must(slices.DeleteCollection(f.ctx(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	testkit.Eventually(t, testTimeout, func() error {
		if through.creates.Load() == before {
			return errors.New("no attempt to restore the slice yet")
		}
		return nil
	})

	attempted := through.creates.Load()
	began := time.Now()
	f.churn(20)
	testkit.Eventually(t, testTimeout, f.checkSlices)
	attempts := through.creates.Load() - attempted
	if most := int64(60 + 2*time.Since(began)/time.Second); attempts > most {
		t.Errorf("%d attempts to create slices within %v, want at most %d", attempts, time.Since(began), most)
	}
	list, err := slices.List(f.ctx(), metav1.ListOptions{})
	if f.must(err); len(list.Items) > 0 {
		t.Errorf("%d slices were created in a terminating namespace", len(list.Items))
	}
}

// joinThrough is join through a faultInjector.
func (f *replicasFixture) joinThrough(name string, through *faultInjector) *testReplica {
	f.t.Helper()
	return f.joinWith(name, through.wrap(testkit.ObjectsOf(testkit.Cluster(f.t).RESTConfig(), f.namespace)))
}

// client-go would wait and repeat the write. The batch period must know that it was throttled.
func TestConnect_ThrottledWriteFailsAtOnce(t *testing.T) {
	t.Parallel()
	var writes atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writes.Add(1)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	clients, err := slicesvc.Connect(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	client := kube.NewSliceClient(clients.Slices, slicesvc.UpstreamManagedBy)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}
	for i, verb := range []planned.Verb{planned.Create, planned.Update, planned.Delete} {
		_, err := client.Write(t.Context(), pack.Change{Verb: verb, Slice: slice})
		if pause, requested := kube.RetryAfter(err); !requested || pause != time.Second {
			t.Errorf("%s: %v, want an error with a Retry-After of 1s", verb, err)
		}
		if got := int(writes.Load()); got != i+1 {
			t.Errorf("%d requests after %d writes", got, i+1)
		}
	}
}
