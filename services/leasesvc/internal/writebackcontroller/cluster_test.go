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

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// requests counts requests by kind.
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

// clusterFixture writes the Leases of agents to a real kube-apiserver.
type clusterFixture struct {
	t                    *testing.T
	kube                 kubernetes.Interface
	class                sessioncontroller.Class
	reads, lists, writes atomic.Int64
}

func newClusterFixture(t *testing.T, writes writeback.Policy) *clusterFixture {
	config := testkit.Cluster(t).RESTConfig()
	config.QPS, config.Burst = -1, -1
	f := &clusterFixture{t: t}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return requests{next: next, reads: &f.reads, lists: &f.lists, writes: &f.writes}
	})
	var err error
	if f.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	f.class = sessioncontroller.Class{
		Namespace: testkit.Namespace(t, testkit.Kube(t)), Unowned: true, Writes: writes,
		Session: session.Class{Name: "agent", Interval: time.Second, Suspect: 5 * time.Second, TTL: 8 * time.Second, Retention: time.Hour},
	}
	return f
}

// noNodes is never called: Leases of agents have no owner.
type noNodes struct{ writebackcontroller.Nodes }

// startTerm holds shard 0 and writes its Leases until end is called.
func (f *clusterFixture) startTerm() (ctl *sessioncontroller.Controller, end func()) {
	metrics := writebackcontroller.NewMetrics(nil)
	logger := slog.New(slog.DiscardHandler)
	writer := writebackcontroller.NewLeaseWriter(f.kube.CoordinationV1(), noNodes{})
	ctl = sessioncontroller.New(sessioncontroller.Config{Classes: []sessioncontroller.Class{f.class}, Shards: 1, Limit: 100_000, AdoptLeases: true, Logger: logger})
	ctx, cancel := context.WithCancel(f.t.Context())
	termCtx, endTerm := context.WithCancel(ctx)
	var running, term sync.WaitGroup
	run := func(group *sync.WaitGroup, call func() error) {
		group.Go(func() {
			if err := call(); err != nil {
				f.t.Error(err)
			}
		})
	}
	run(&running, func() error { return ctl.Run(ctx) })
	run(&term, func() error { return ctl.RunShard(sessioncontroller.NewHeldShard(termCtx, 0, 1)) })
	testkit.Eventually(f.t, time.Minute, func() error {
		_, _, err := ctl.Get(f.t.Context(), session.Key{}, 0)
		return err
	})
	run(&running, func() error { return writebackcontroller.NewAdopter(writer, logger).Run(ctx, ctl) })
	controller := writebackcontroller.New(writebackcontroller.Config{Workers: 32, Timeout: 10 * time.Second, Metrics: metrics, Logger: logger}, writer)
	run(&running, func() error { return controller.Run(ctx, ctl, func(error) {}) })
	return ctl, func() { endTerm(); term.Wait(); cancel(); running.Wait() }
}

// beat sends one beat of the first holders.
func (f *clusterFixture) beat(ctl *sessioncontroller.Controller, holders int) {
	f.t.Helper()
	const message = 500
	for from := 0; from < holders; from += message {
		batch := sessioncontroller.NewBatch()
		for i := from; i < min(from+message, holders); i++ {
			batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{
				Holder: session.Holder{Key: session.Key{Name: fmt.Sprintf("agent-%05d", i)}, Boot: "1"}, Sequence: 1,
			})
		}
		if err := ctl.Process(f.t.Context(), batch); err != nil {
			f.t.Fatal(err)
		}
	}
}

// busyTimeout is for what a busy machine does: an idle one writes 5000 Leases in ten seconds.
const busyTimeout = 4 * time.Minute

// beatUntil lets the first holders beat twice a second until done.
func (f *clusterFixture) beatUntil(ctl *sessioncontroller.Controller, holders int, done func() bool) {
	f.t.Helper()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(busyTimeout); !done(); <-ticker.C {
		if time.Now().After(end) {
			f.t.Fatalf("not done within %v", busyTimeout)
		}
		f.beat(ctl, holders)
	}
}

// writesWithin counts the writes while the first holders beat for the duration.
func (f *clusterFixture) writesWithin(ctl *sessioncontroller.Controller, holders int, d time.Duration) int64 {
	before, end := f.writes.Load(), time.Now().Add(d)
	f.beatUntil(ctl, holders, func() bool { return time.Now().After(end) })
	return f.writes.Load() - before
}

func TestRun_OnChangeOf5000HoldersOnARealAPIServer(t *testing.T) {
	testkit.LongTest(t, 2)
	t.Parallel()
	const holders, silent = 5000, 50
	const refresh = 300 * time.Second
	f := newClusterFixture(t, writeback.Policy{Mode: writeback.OnChange, Renew: refresh, Duration: 500 * time.Second})
	ctl, end := f.startTerm()
	begin := time.Now()
	f.beatUntil(ctl, holders, func() bool { return f.writes.Load() >= holders })
	t.Logf("%d Leases written in %v with %d lists and %d reads", f.writes.Load(), time.Since(begin).Round(time.Millisecond), f.lists.Load(), f.reads.Load())

	const watched = 6 * time.Second
	refreshes := int64(holders * watched / refresh)
	got := f.writesWithin(ctl, holders, watched)
	for again := 0; got > 2*refreshes && again < 10; again++ {
		t.Logf("%d writes in %v: a machine that delays beats makes holders expire and recover", got, watched)
		got = f.writesWithin(ctl, holders, watched)
	}
	if got > 2*refreshes {
		t.Errorf("%d writes in %v of steady beats, want about %d", got, watched, refreshes)
	}

	before := f.writes.Load()
	f.beatUntil(ctl, holders-silent, func() bool { return ctl.Counts().Expired == silent && ctl.Backlog() == (writeback.Backlog{}) })
	got = f.writesWithin(ctl, holders-silent, 2*time.Second) + f.writes.Load() - before
	if got < silent || got > 2*silent+4*refreshes {
		t.Errorf("%d writes after %d holders expired", got, silent)
	}
	name := fmt.Sprintf("agent-%05d", holders-1)
	lease, err := f.kube.CoordinationV1().Leases(f.class.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second; lease.Spec.RenewTime.Add(d).After(time.Now()) {
		t.Errorf("the Lease of an expired holder has not lapsed: %v for %v", lease.Spec.RenewTime, d)
	}
	end()

	// The next term adopts the Leases without single reads. Only the Leases of recovered holders
	// are written at once.
	f.reads.Store(0)
	f.lists.Store(0)
	before = f.writes.Load()
	ctl, end = f.startTerm()
	defer end()
	f.beatUntil(ctl, holders, func() bool { return f.writes.Load()-before >= silent })
	after := f.writesWithin(ctl, holders, 3*time.Second)
	all := f.writes.Load() - before
	t.Logf("takeover: %d writes, %d of them in the last 3 s, %d lists, %d reads", all, after, f.lists.Load(), f.reads.Load())
	if f.reads.Load() > 10 || f.lists.Load() > 2*holders/500+2 || all > silent+10*refreshes {
		t.Errorf("a takeover cost %d reads, %d lists, %d writes", f.reads.Load(), f.lists.Load(), all)
	}
}
