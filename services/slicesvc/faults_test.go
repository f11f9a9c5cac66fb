package slicesvc_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/testkit"
)

// trouble is what stands between a replica and kube-apiserver: watches of it can be held up, and some of its writes are
// refused or answered late.
type trouble struct {
	gate     gate
	refusing atomic.Bool
	refused  atomic.Int64
	creates  atomic.Int64 // attempts

	mu     sync.Mutex // guards random
	random *rand.Rand
}

func newTrouble(seed uint64) *trouble { return &trouble{random: rand.New(rand.NewPCG(seed, 0))} }

// of returns a copy of config that leads through the trouble.
func (x *trouble) of(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &troubled{trouble: x, next: next} })
	return config
}

type troubled struct {
	trouble *trouble
	next    http.RoundTripper
}

func (r *troubled) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		answer, err := r.next.RoundTrip(req)
		if err == nil && req.URL.Query().Get("watch") != "" {
			answer.Body = gated{ReadCloser: answer.Body, gate: &r.trouble.gate}
		}
		return answer, err
	}
	if !writesSlice(req) {
		return r.next.RoundTrip(req)
	}
	if req.Method == http.MethodPost {
		r.trouble.creates.Add(1)
	}
	if status := r.trouble.refusal(); status != 0 {
		return refuse(req, status), nil
	}
	return r.next.RoundTrip(req)
}

// refusal is the status with which a write is refused, 0 for none: too many requests, a conflict, or a server in trouble.
func (x *trouble) refusal() int {
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

// gate holds up who passes while it is closed.
type gate struct {
	barrier sync.RWMutex
	held    atomic.Int64 // how often somebody had to wait
}

func (g *gate) pass() {
	if !g.barrier.TryRLock() {
		g.held.Add(1)
		g.barrier.RLock()
	}
	g.barrier.RUnlock()
}

// gated is a body whose reads pass a gate, also with what has been read before it closed.
type gated struct {
	io.ReadCloser
	gate *gate
}

func (b gated) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	b.gate.pass()
	return n, err
}

// anyHand does to some slice what others may: it deletes it, or takes its endpoints out.
func (f *fleet) anyHand() {
	f.t.Helper()
	slices := f.kube.DiscoveryV1().EndpointSlices(f.namespace)
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
		f.t.Logf("a hand came too late: %v", err) // a replica was faster
	}
}

// churnUntil makes changes until something has come of them: a replica that joins
// again writes nothing, and on a busy machine that may take a while.
func (f *fleet) churnUntil(seen func() error) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		err := seen()
		if err != nil {
			f.churn(1)
		}
		return err
	})
}

func some(what string, count int64) error {
	if count == 0 {
		return fmt.Errorf("no %s yet", what)
	}
	return nil
}

func TestFaults_SlicesAreExactOnceAllIsQuiet(t *testing.T) {
	f := newFleet(t)
	f.node("a", "zone-a")
	etcd := testkit.Etcd(t)
	since := revision(t, etcd)
	first, second := newTrouble(1), newTrouble(2)
	one := f.joinThrough("replica-1", first)
	two := f.joinThrough("replica-2", second)
	f.churn(40)
	for range 3 {
		first.gate.barrier.Lock() // replica-1 sees nothing, and writes from what it knows
		f.churn(20)
		f.cutOff(two) // shards swap: what replica-2 held goes to one that sees nothing
		f.churn(20)
		f.anyHand()
		testkit.Eventually(t, patience, func() error { return some("events held up", first.gate.held.Load()) })
		first.gate.barrier.Unlock()

		first.refusing.Store(true)
		second.refusing.Store(true)
		f.churn(20)
		f.cutOff(one)
		f.anyHand()
		f.churn(20)
		f.churnUntil(func() error {
			return errors.Join(some("writes of replica-1 refused", first.refused.Load()), some("writes of replica-2 refused", second.refused.Load()))
		})
		first.refusing.Store(false)
		second.refusing.Store(false)
	}
	for _, r := range []*fleetReplica{one, two} {
		testkit.Eventually(t, patience, func() error { return errors.Join(r.candidate.Check(), f.holdsSome(r), f.exact(), f.done(r)) })
	}
	f.audit.check(t, fleetShards, claimsSince(t, etcd, f.cluster, since))
}

// A namespace that goes refuses new slices for as long as it is there, which must not keep anybody busy.
func TestFaults_ANamespaceThatGoesIsLeftAlone(t *testing.T) {
	f := newFleet(t)
	node := f.node("a", "zone-a")
	through := newTrouble(1)
	replica := f.joinThrough("replica-1", through)
	f.churn(20)
	testkit.Eventually(t, patience, func() error { return errors.Join(f.exact(), f.done(replica)) })

	going := &world{t: t, kube: f.kube, namespace: testkit.Namespace(t, f.kube)}
	going.service()
	going.pod("web-0", node, []string{"10.2.0.1"})
	going.expect("IPv4 http 8080/TCP: web-0 10.2.0.1 zone-a RS")
	f.must(f.kube.CoreV1().Namespaces().Delete(f.ctx(), going.namespace, metav1.DeleteOptions{}))
	before := through.creates.Load()
	slices := f.kube.DiscoveryV1().EndpointSlices(going.namespace)
	f.must(slices.DeleteCollection(f.ctx(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	testkit.Eventually(t, patience, func() error {
		if through.creates.Load() == before {
			return errors.New("nobody has tried to restore the slice")
		}
		return nil
	})

	attempted := through.creates.Load()
	began := time.Now()
	f.churn(20)
	testkit.Eventually(t, patience, f.exact)
	made := through.creates.Load() - attempted
	if most := int64(60 + 2*time.Since(began)/time.Second); made > most {
		t.Errorf("%d attempts to create slices within %v, want at most %d", made, time.Since(began), most)
	}
	list, err := slices.List(f.ctx(), metav1.ListOptions{})
	if f.must(err); len(list.Items) > 0 {
		t.Errorf("%d slices came about in a namespace that goes", len(list.Items))
	}
}

// joinThrough is join for a replica with trouble.
func (f *fleet) joinThrough(name string, through *trouble) *fleetReplica {
	f.t.Helper()
	return f.joinWith(name, through.of(testkit.Cluster(f.t).RESTConfig()))
}
