package writebackcontroller_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// requests counts them by what they are.
type requests struct {
	next                 http.RoundTripper
	reads, lists, writes *atomic.Int64
}

func (r requests) RoundTrip(request *http.Request) (*http.Response, error) {
	switch {
	case request.Method != http.MethodGet:
		r.writes.Add(1)
	case request.URL.Query().Has("limit"):
		r.lists.Add(1)
	default:
		r.reads.Add(1)
	}
	return r.next.RoundTrip(request)
}

// office writes the Leases of agents, who need no Nodes, to the real kube-apiserver.
type clusterFixture struct {
	t                    *testing.T
	kube                 kubernetes.Interface
	class                sessioncontroller.Class
	reads, lists, writes atomic.Int64
}

func newClusterFixture(t *testing.T, writes writeback.Policy) *clusterFixture {
	config := testkit.Cluster(t).RESTConfig()
	config.QPS, config.Burst = -1, -1
	o := &clusterFixture{t: t}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return requests{next: next, reads: &o.reads, lists: &o.lists, writes: &o.writes}
	})
	var err error
	if o.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	o.class = sessioncontroller.Class{
		Namespace: testkit.Namespace(t, testkit.Kube(t)), Unowned: true, Writes: writes,
		Session: session.Class{Name: "agent", Interval: time.Second, Suspect: 2500 * time.Millisecond, TTL: 4 * time.Second, Retention: time.Hour},
	}
	return o
}

// noNodes is never asked: agents have none.
type noNodes struct{ writebackcontroller.Nodes }

// term keeps shard 0 from its begin until end is called, and writes.
func (o *clusterFixture) startTerm() (ctl *sessioncontroller.Controller, end func()) {
	metrics, err := writebackcontroller.NewMetrics(nil)
	if err != nil {
		o.t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	writer := writebackcontroller.NewLeaseWriter(o.kube.CoordinationV1(), noNodes{})
	ctl = sessioncontroller.New(sessioncontroller.Config{Classes: []sessioncontroller.Class{o.class}, Shards: 1, Limit: 100_000, AdoptLeases: true, Logger: logger})
	ctx, cancel := context.WithCancel(o.t.Context())
	kept, lose := context.WithCancel(ctx)
	var running, term sync.WaitGroup
	run := func(group *sync.WaitGroup, call func() error) {
		group.Go(func() {
			if err := call(); err != nil {
				o.t.Error(err)
			}
		})
	}
	run(&running, func() error { return ctl.Run(ctx) })
	run(&term, func() error { return ctl.RunShard(heldshards.New(kept, 0, 1)) })
	testkit.Eventually(o.t, 10*time.Second, func() error {
		_, _, err := ctl.Get(o.t.Context(), session.Key{}, 0)
		return err
	})
	run(&running, func() error { return writebackcontroller.NewAdopter(writer, logger).Run(ctx, ctl) })
	loop := writebackcontroller.New(writebackcontroller.Config{Workers: 32, Timeout: 10 * time.Second, Metrics: metrics, Logger: logger}, writer)
	run(&running, func() error { return loop.Run(ctx, ctl, func(error) {}) })
	return ctl, func() { lose(); term.Wait(); cancel(); running.Wait() }
}

// beat is heard from the first so many holders.
func (o *clusterFixture) beat(ctl *sessioncontroller.Controller, holders int) {
	o.t.Helper()
	const message = 500
	for from := 0; from < holders; from += message {
		x := sessioncontroller.NewBatch()
		for i := from; i < min(from+message, holders); i++ {
			x.Registrations = append(x.Registrations, sessioncontroller.Registration{
				Holder: session.Holder{Key: session.Key{Name: fmt.Sprintf("agent-%05d", i)}, Boot: "1"}, Sequence: 1,
			})
		}
		if err := ctl.Process(o.t.Context(), x); err != nil {
			o.t.Fatal(err)
		}
	}
}

// beatUntil lets the first so many holders beat twice a second until done.
func (o *clusterFixture) beatUntil(ctl *sessioncontroller.Controller, holders int, done func() bool) {
	o.t.Helper()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(60 * time.Second); !done(); <-ticker.C {
		if time.Now().After(end) {
			o.t.Fatal("not done in a minute")
		}
		o.beat(ctl, holders)
	}
}

// steady is what writes there are in so many seconds in which the first so many holders beat.
func (o *clusterFixture) writesWithin(ctl *sessioncontroller.Controller, holders int, d time.Duration) int64 {
	before, end := o.writes.Load(), time.Now().Add(d)
	o.beatUntil(ctl, holders, func() bool { return time.Now().After(end) })
	return o.writes.Load() - before
}

func TestRun_OnChangeOf5000HoldersOnARealAPIServer(t *testing.T) {
	const holders, silent = 5000, 50
	const refresh = 300 * time.Second
	o := newClusterFixture(t, writeback.Policy{Mode: writeback.OnChange, Renew: refresh, Duration: 500 * time.Second})
	ctl, end := o.startTerm()
	begin := time.Now()
	o.beatUntil(ctl, holders, func() bool { return o.writes.Load() >= holders })
	t.Logf("%d Leases made in %v with %d lists and %d reads", o.writes.Load(), time.Since(begin).Round(time.Millisecond), o.lists.Load(), o.reads.Load())

	const watched = 6 * time.Second
	refreshes := int64(holders * watched / refresh)
	if got := o.writesWithin(ctl, holders, watched); got > 2*refreshes {
		t.Errorf("%d writes in %v while nothing happened, want some %d", got, watched, refreshes)
	}

	before := o.writes.Load()
	o.beatUntil(ctl, holders-silent, func() bool { return ctl.Counts().Expired == silent && ctl.Backlog() == (writeback.Backlog{}) })
	got := o.writesWithin(ctl, holders-silent, 2*time.Second) + o.writes.Load() - before
	if got < silent || got > 2*silent+4*refreshes {
		t.Errorf("%d writes when %d of them died", got, silent)
	}
	name := fmt.Sprintf("agent-%05d", holders-1)
	lease, err := o.kube.CoordinationV1().Leases(o.class.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second; lease.Spec.RenewTime.Add(d).After(time.Now()) {
		t.Errorf("the Lease of a dead holder reads as alive: %v for %v", lease.Spec.RenewTime, d)
	}
	end()

	// Who takes over knows what there is without reading it one by one, and hurries with nothing but the dead who are back.
	o.reads.Store(0)
	o.lists.Store(0)
	before = o.writes.Load()
	ctl, end = o.startTerm()
	defer end()
	o.beatUntil(ctl, holders, func() bool { return o.writes.Load()-before >= silent })
	after := o.writesWithin(ctl, holders, 3*time.Second)
	all := o.writes.Load() - before
	t.Logf("takeover: %d writes, %d of them in the last 3 s, %d lists, %d reads", all, after, o.lists.Load(), o.reads.Load())
	if o.reads.Load() > 10 || o.lists.Load() > 2*holders/500+2 || all > silent+10*refreshes {
		t.Errorf("a takeover cost %d reads, %d lists, %d writes", o.reads.Load(), o.lists.Load(), all)
	}
}
