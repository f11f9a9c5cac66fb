package renewal_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodes"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/renewal"
)

// source hands out its jobs once and keeps what came of them.
type source struct {
	mu       sync.Mutex
	jobs     []keeper.Job
	finished map[string]keeper.Result
}

func newSource(names ...string) *source {
	s := &source{finished: map[string]keeper.Result{}}
	for _, name := range names {
		s.jobs = append(s.jobs, keeper.Job{Name: name})
	}
	return s
}

func (s *source) Start(_ context.Context, budget int) ([]keeper.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.jobs[:min(budget, len(s.jobs))]
	s.jobs = s.jobs[len(jobs):]
	return jobs, nil
}

func (s *source) Finish(job keeper.Job, result keeper.Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished[job.Name] = result
	return nil
}

// apiserver takes most of a second for each write, fails as its names say and sees how many come at a time.
type apiserver struct {
	mu         sync.Mutex
	busy, peak int
	failures   map[string]error
	hangs      bool
}

func (a *apiserver) Write(ctx context.Context, r leaseobject.Renewal) (*coordinationv1.Lease, leaseobject.Verb, error) {
	a.enter(1)
	defer a.enter(-1)
	took := 900 * time.Millisecond
	if a.hangs {
		took = time.Hour
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return nil, leaseobject.Update, context.Cause(ctx)
	}
	if err := a.failures[r.Name]; err != nil {
		return nil, leaseobject.None, err
	}
	return &coordinationv1.Lease{}, leaseobject.Update, nil
}

func (a *apiserver) enter(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy += n
	a.peak = max(a.peak, a.busy)
}

type harness struct {
	loop     *renewal.Loop
	registry *prometheus.Registry
	reports  []error
}

func newHarness(t *testing.T, api *apiserver) *harness {
	t.Helper()
	registry := prometheus.NewRegistry()
	metrics, err := renewal.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	return &harness{
		loop:     renewal.New(renewal.Config{Workers: 4, Timeout: 10 * time.Second, Metrics: metrics}, api),
		registry: registry,
	}
}

// run runs the loop for d of the bubble's time.
func (h *harness) run(t *testing.T, s renewal.Source, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := h.loop.Run(ctx, s, func(err error) { h.reports = append(h.reports, err) }); err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestRun_WritesEverythingWithBoundedConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprint(i))
		}
		s, api := newSource(names...), &apiserver{}
		newHarness(t, api).run(t, s, 50*time.Second)
		if len(s.finished) != 200 || api.peak != 4 {
			t.Errorf("%d finished with %d at a time, want 200 with 4", len(s.finished), api.peak)
		}
	})
}

func TestRun_FinishesWhatItTookWhenTheTermEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource("a", "b", "c", "d", "e", "f")
		newHarness(t, &apiserver{}).run(t, s, 500*time.Millisecond)
		if len(s.finished) != 6 {
			t.Errorf("%d of 6 finished", len(s.finished))
		}
		for name, result := range s.finished {
			if !errors.Is(result.Err, context.DeadlineExceeded) {
				t.Errorf("%s: error %v, want the end of the term", name, result.Err)
			}
		}
	})
}

func TestRun_ReportsAPassInWhichNothingWorked(t *testing.T) {
	outage := errors.New("connection refused")
	gone := fmt.Errorf("node: %w", nodes.ErrMissing)
	for name, c := range map[string]struct {
		failures map[string]error
		want     error
	}{
		"all well":            {},
		"some fail":           {failures: map[string]error{"a": outage}},
		"all fail":            {failures: map[string]error{"a": outage, "b": outage}, want: outage},
		"none has a Node":     {failures: map[string]error{"a": gone, "b": leaseobject.ErrForeignHolder}},
		"no Node and failure": {failures: map[string]error{"a": gone, "b": outage}, want: outage},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, &apiserver{failures: c.failures})
			h.run(t, newSource("a", "b"), 1500*time.Millisecond)
			if got := errors.Join(h.reports...); !errors.Is(got, c.want) || (c.want == nil) != (got == nil) {
				t.Errorf("%s: reported %v, want %v", name, got, c.want)
			}
		})
	}
}

// A loop that is silent for long is taken for stuck, and its process restarted, in the middle of an outage.
func TestRun_ReportsInTimeHoweverFewTheWorkersAre(t *testing.T) {
	for _, workers := range []int{1, 4, 100} {
		synctest.Test(t, func(t *testing.T) {
			const timeout = 10 * time.Second
			metrics, err := renewal.NewMetrics(nil)
			if err != nil {
				t.Fatal(err)
			}
			l := renewal.New(renewal.Config{Workers: workers, Timeout: timeout, Metrics: metrics}, &apiserver{hangs: true})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			last, longest, failures := time.Now(), time.Duration(0), 0
			err = l.Run(ctx, newSource(make([]string, 1000)...), func(err error) {
				last, longest = time.Now(), max(longest, time.Since(last))
				if errors.Is(err, context.DeadlineExceeded) {
					failures++
				}
			})
			if err != nil || failures == 0 || longest > 2*timeout {
				t.Errorf("%d workers: %v, %d failed passes, longest silence %v; want some, and %v at most", workers, err, failures, longest, 2*timeout)
			}
		})
	}
}

func TestRun_TellsTheKeeperWhatCameOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := apierrors.NewTooManyRequests("later", 3)
		s := newSource("a", "b", "c")
		h := newHarness(t, &apiserver{failures: map[string]error{"a": nodes.ErrMissing, "b": throttled}})
		h.run(t, s, 1500*time.Millisecond)
		if err := s.finished["a"].Err; !errors.Is(err, keeper.ErrNoOwner) {
			t.Errorf("a: error %v, want ErrNoOwner", err)
		}
		if got := s.finished["b"]; !apierrors.IsTooManyRequests(got.Err) || got.Pause != 3*time.Second {
			t.Errorf("b: %+v, want a pause of 3 s", got)
		}
		want := keeper.Result{Lease: &coordinationv1.Lease{}}
		if diff := cmp.Diff(want, s.finished["c"]); diff != "" {
			t.Errorf("c (-want +got):\n%s", diff)
		}
		counted := map[string]float64{"none/no_owner": 1, "none/throttled": 1, "update/success": 1}
		if diff := cmp.Diff(counted, writes(t, h.registry)); diff != "" {
			t.Errorf("trivet_lease_writes_total (-want +got):\n%s", diff)
		}
	})
}

// writes is trivet_lease_writes_total by "verb/result".
func writes(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "trivet_lease_writes_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := metric.GetLabel() // ordered by name
			counts[labels[1].GetValue()+"/"+labels[0].GetValue()] = metric.GetCounter().GetValue()
		}
	}
	return counts
}
