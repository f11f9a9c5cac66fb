package writebackcontroller_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// strained is a kube-apiserver that throttles whoever comes while as many as it bears are there already.
type strained struct {
	mu        sync.Mutex
	bears     int // 0 while it is away
	busy      int
	served    int
	refused   int
	peak      int
	takes     time.Duration
	throttles error
}

func newStrained(bears int) *strained {
	return &strained{bears: bears, takes: 10 * time.Millisecond, throttles: apierrors.NewTooManyRequests("later", 1)}
}

func (a *strained) Write(ctx context.Context, _ writeback.LeaseUpdate) (writeback.LeaseRecord, writebackcontroller.Verb, error) {
	if err := a.enter(); err != nil {
		return writeback.LeaseRecord{}, writebackcontroller.VerbUpdate, err
	}
	time.Sleep(a.takes)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy--
	a.served++
	return written, writebackcontroller.VerbUpdate, ctx.Err()
}

func (a *strained) enter() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.bears == 0:
		a.refused++
		return fmt.Errorf("dial tcp: connection refused")
	case a.busy >= a.bears:
		a.refused++
		return a.throttles
	}
	a.busy++
	a.peak = max(a.peak, a.busy)
	return nil
}

func (a *strained) set(bears int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bears = bears
}

// take returns what was served and refused since the last call.
func (a *strained) take() (served, refused int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	served, refused = a.served, a.refused
	a.served, a.refused = 0, 0
	return served, refused
}

// flood has an endless backlog for a loop with 32 workers, in the background of the test's bubble.
func flood(t *testing.T, api *strained) (registry *prometheus.Registry, end func()) {
	t.Helper()
	registry = prometheus.NewRegistry()
	metrics, err := writebackcontroller.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	l := writebackcontroller.New(writebackcontroller.Config{
		Workers: 32, Timeout: 10 * time.Second, Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
	}, api)
	ctx, cancel := context.WithCancel(t.Context())
	names := make([]string, 500_000)
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Run(ctx, newSource(ctx, names...), func(error) {}); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return registry, func() { cancel(); running.Wait() }
}

func TestRun_TakesWhatTheAPIServerBears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newStrained(8)
		_, end := flood(t, api)
		defer end()
		time.Sleep(5 * time.Second)
		api.take()
		time.Sleep(20 * time.Second)
		served, refused := api.take()
		// 8 at a time of 10 ms each are 16,000 in 20 s; each that is refused costs a pause of a second.
		if served < 5000 || refused > served/100 {
			t.Errorf("served %d, refused %d in 20 s", served, refused)
		}
	})
}

func TestRun_OutageIsProbedNowAndThenAndForgottenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newStrained(32)
		registry, end := flood(t, api)
		defer end()
		time.Sleep(10 * time.Second)
		api.set(0)
		time.Sleep(time.Minute)
		api.take()
		time.Sleep(4 * time.Minute)
		if served, refused := api.take(); served > 0 || refused > 4*60/5+1 {
			t.Errorf("served %d, tried %d in four minutes without a kube-apiserver; want a try every 5 s at most", served, refused)
		}
		if got := gauge(t, registry, "trivet_lease_writes_limit"); got > 1 {
			t.Errorf("limit %v, want one try at a time", got)
		}
		api.set(32)
		time.Sleep(10 * time.Second)
		api.take()
		time.Sleep(time.Second)
		if served, _ := api.take(); served < 2000 {
			t.Errorf("served %d in the eleventh second after the outage, want two thirds of the 3,200 before", served)
		}
		if got := gauge(t, registry, "trivet_lease_writes_pending"); got == 0 {
			t.Error("nothing is said to be pending")
		}
	})
}

// gauge is the sum over the labels of a metric.
func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				sum += metric.GetGauge().GetValue()
			}
		}
	}
	return sum
}
