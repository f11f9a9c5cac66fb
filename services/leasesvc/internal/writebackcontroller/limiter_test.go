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

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// limitedAPIServer throttles writes beyond its capacity.
type limitedAPIServer struct {
	mu            sync.Mutex
	capacity      int // 0 during an outage
	inFlight      int
	served        int
	rejected      int
	peak          int
	latency       time.Duration
	throttleError error
}

func newLimitedAPIServer(bears int) *limitedAPIServer {
	return &limitedAPIServer{capacity: bears, latency: 10 * time.Millisecond, throttleError: apierrors.NewTooManyRequests("later", 1)}
}

func (a *limitedAPIServer) Write(ctx context.Context, _ writeback.LeaseUpdate) (writeback.LeaseRecord, planned.Verb, error) {
	if err := a.begin(); err != nil {
		return writeback.LeaseRecord{}, planned.Update, err
	}
	time.Sleep(a.latency)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight--
	a.served++
	return written, planned.Update, ctx.Err()
}

func (a *limitedAPIServer) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.capacity == 0:
		a.rejected++
		return fmt.Errorf("dial tcp: connection refused")
	case a.inFlight >= a.capacity:
		a.rejected++
		return a.throttleError
	}
	a.inFlight++
	a.peak = max(a.peak, a.inFlight)
	return nil
}

func (a *limitedAPIServer) setCapacity(bears int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.capacity = bears
}

// takeCounts returns the served and rejected writes since the last call.
func (a *limitedAPIServer) takeCounts() (served, rejected int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	served, rejected = a.served, a.rejected
	a.served, a.rejected = 0, 0
	return served, rejected
}

// runBacklog runs a controller with 32 workers and an endless backlog until end is called.
func runBacklog(t *testing.T, api *limitedAPIServer) (registry *prometheus.Registry, end func()) {
	t.Helper()
	registry = prometheus.NewRegistry()
	metrics := writebackcontroller.NewMetrics(registry)
	l := writebackcontroller.New(writebackcontroller.Config{
		Workers: 32, Timeout: 10 * time.Second, Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
	}, api)
	ctx, cancel := context.WithCancel(t.Context())
	names := make([]string, 500_000)
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Run(ctx, newFakeSource(ctx, names...), func(error) {}); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return registry, func() { cancel(); running.Wait() }
}

func TestRun_ConcurrencyFollowsTheCapacityOfTheAPIServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLimitedAPIServer(8)
		_, end := runBacklog(t, api)
		defer end()
		time.Sleep(5 * time.Second)
		api.takeCounts()
		time.Sleep(20 * time.Second)
		served, rejected := api.takeCounts()
		// 8 writes of 10 ms at a time are 16,000 in 20 s. Each rejected write costs a pause of a
		// second.
		if served < 5000 || rejected > served/100 {
			t.Errorf("served %d, rejected %d in 20 s", served, rejected)
		}
	})
}

func TestRun_OutageIsProbedAndRecoveryIsFast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLimitedAPIServer(32)
		registry, end := runBacklog(t, api)
		defer end()
		time.Sleep(10 * time.Second)
		api.setCapacity(0)
		time.Sleep(time.Minute)
		api.takeCounts()
		time.Sleep(4 * time.Minute)
		if served, rejected := api.takeCounts(); served > 0 || rejected > 4*60/5+1 {
			t.Errorf("served %d, tried %d in an outage of four minutes; want at most one probe every 5 s", served, rejected)
		}
		if got := gauge(t, registry, "trivet_lease_writes_limit"); got > 1 {
			t.Errorf("limit %v, want 1", got)
		}
		api.setCapacity(32)
		time.Sleep(10 * time.Second)
		api.takeCounts()
		time.Sleep(time.Second)
		if served, _ := api.takeCounts(); served < 2000 {
			t.Errorf("served %d in the eleventh second after the outage, want two thirds of the 3,200 before", served)
		}
		if got := gauge(t, registry, "trivet_lease_writes_pending"); got == 0 {
			t.Error("trivet_lease_writes_pending is 0")
		}
	})
}

// gauge returns the sum of a metric over its labels.
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
