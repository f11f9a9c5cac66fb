package writebackcontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// fakeSource returns each job once and records the results.
type fakeSource struct {
	mu       sync.Mutex
	jobs     []sessioncontroller.WriteJob
	finished map[string]sessioncontroller.WriteResult
}

// newFakeSource has one job for each name, under a term that ends with ctx.
func newFakeSource(ctx context.Context, names ...string) *fakeSource {
	s := &fakeSource{finished: map[string]sessioncontroller.WriteResult{}}
	held := sessioncontroller.NewHeldShard(ctx, 0, 1)
	for _, name := range names {
		s.jobs = append(s.jobs, sessioncontroller.WriteJob{Shard: held, LeaseUpdate: writeback.LeaseUpdate{Name: name}})
	}
	return s
}

func (s *fakeSource) StartWrites(_ context.Context, budget int) ([]sessioncontroller.WriteJob, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.jobs[:min(budget, len(s.jobs))]
	s.jobs = s.jobs[len(jobs):]
	return jobs, nil
}

func (s *fakeSource) Backlog() writeback.Backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	return writeback.Backlog{Firsts: len(s.jobs)}
}

func (s *fakeSource) FinishWrite(job sessioncontroller.WriteJob, result sessioncontroller.WriteResult) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished[job.Name] = result
	return nil
}

// written is the record of each successful write.
var written = writeback.NewLeaseRecord(&coordinationv1.Lease{})

// fakeAPIServer takes 900 ms for each write and records the concurrency. It fails and panics for
// given names.
type fakeAPIServer struct {
	mu             sync.Mutex
	inFlight, peak int
	failures       map[string]error
	panics         map[string]bool
	hangs          bool
}

func (a *fakeAPIServer) Write(ctx context.Context, r writeback.LeaseUpdate) (writeback.LeaseRecord, planned.Verb, error) {
	a.addInFlight(1)
	defer a.addInFlight(-1)
	took := 900 * time.Millisecond
	if a.hangs {
		took = time.Hour
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return writeback.LeaseRecord{}, planned.Update, context.Cause(ctx)
	}
	if a.panics[r.Name] {
		panic("no such index")
	}
	if err := a.failures[r.Name]; err != nil {
		return writeback.LeaseRecord{}, planned.None, err
	}
	return written, planned.Update, nil
}

func (a *fakeAPIServer) addInFlight(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight += n
	a.peak = max(a.peak, a.inFlight)
}

type fixture struct {
	controller *writebackcontroller.Controller
	registry   *prometheus.Registry
	reports    []error
}

func newFixture(t *testing.T, api *fakeAPIServer) *fixture {
	t.Helper()
	registry := prometheus.NewRegistry()
	metrics := writebackcontroller.NewMetrics(registry)
	return &fixture{
		controller: writebackcontroller.New(writebackcontroller.Config{
			Workers: 4, Timeout: 10 * time.Second, Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
		}, api),
		registry: registry,
	}
}

// run runs the controller for d.
func (h *fixture) run(t *testing.T, s writebackcontroller.WriteSource, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := h.controller.Run(ctx, s, func(err error) { h.reports = append(h.reports, err) }); err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestRun_MakesAllWritesWithBoundedConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprint(i))
		}
		s, api := newFakeSource(t.Context(), names...), &fakeAPIServer{}
		newFixture(t, api).run(t, s, 50*time.Second)
		if len(s.finished) != 200 || api.peak != 4 {
			t.Errorf("%d finished with %d at a time, want 200 with 4", len(s.finished), api.peak)
		}
	})
}

func TestRun_FinishesItsJobsWhenItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeSource(t.Context(), "a", "b", "c", "d", "e", "f")
		newFixture(t, &fakeAPIServer{}).run(t, s, 500*time.Millisecond)
		if len(s.finished) != 4 || len(s.jobs) != 2 {
			t.Errorf("%d finished and %d not taken, want 4 and 2", len(s.finished), len(s.jobs))
		}
		for name, result := range s.finished {
			if result.Err == nil {
				t.Errorf("%s was written after Run was cancelled", name)
			}
		}
	})
}

func TestRun_EndOfATermCancelsItsWritesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ends = 500 * time.Millisecond // during the first writes
		lost, cancel := context.WithTimeout(t.Context(), ends)
		defer cancel()
		s, gone := newFakeSource(t.Context(), "a", "b"), newFakeSource(lost, "x", "y", "z")
		s.jobs = append(s.jobs, gone.jobs...)
		h := newFixture(t, &fakeAPIServer{})
		h.run(t, s, 3*time.Second)
		want := map[string]bool{"a": true, "b": true, "x": false, "y": false, "z": false}
		got := map[string]bool{}
		for name, result := range s.finished {
			got[name] = result.Err == nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
		if failed := errors.Join(h.reports...); failed != nil {
			t.Errorf("reported %v, want nil for the end of a term", failed)
		}
	})
}

func TestRun_PanicCostsOneWriteAndIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := []string{"bad", "bad too", "bad as well", "worse"} // one for each worker
		bad := map[string]bool{}
		for _, name := range names {
			bad[name] = true
		}
		for i := range 20 {
			names = append(names, fmt.Sprint(i))
		}
		s, h := newFakeSource(t.Context(), names...), newFixture(t, &fakeAPIServer{panics: bad})
		h.run(t, s, 10*time.Second)
		for _, name := range names {
			result, finished := s.finished[name]
			if !finished || (result.Err != nil) != bad[name] {
				t.Errorf("%s: finished %t with error %v", name, finished, result.Err)
			}
		}
		if got := errors.Join(h.reports...); got == nil || !strings.Contains(got.Error(), "no such index") {
			t.Errorf("reported %v, want the panic", got)
		}
		if last := h.reports[len(h.reports)-1]; last != nil {
			t.Errorf("the last pass failed: %v", last)
		}
	})
}

func TestRun_ReportsAPassWithoutSuccess(t *testing.T) {
	t.Parallel()
	outage := errors.New("connection refused")
	gone := fmt.Errorf("node: %w", nodestore.ErrNodeMissing)
	for name, c := range map[string]struct {
		failures map[string]error
		want     error
	}{
		"all succeed":         {},
		"some fail":           {failures: map[string]error{"a": outage}},
		"all fail":            {failures: map[string]error{"a": outage, "b": outage}, want: outage},
		"none has a Node":     {failures: map[string]error{"a": gone, "b": writeback.ErrForeignHolder}},
		"no Node and failure": {failures: map[string]error{"a": gone, "b": outage}, want: outage},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newFixture(t, &fakeAPIServer{failures: c.failures})
			h.run(t, newFakeSource(t.Context(), "a", "b"), 1500*time.Millisecond)
			if got := errors.Join(h.reports...); !errors.Is(got, c.want) || (c.want == nil) != (got == nil) {
				t.Errorf("%s: reported %v, want %v", name, got, c.want)
			}
		})
	}
}

// A loop without reports counts as stalled, and its process would be restarted during an outage.
func TestRun_ReportsInTimeWithAnyNumberOfWorkers(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4, 100} {
		synctest.Test(t, func(t *testing.T) {
			const timeout = 10 * time.Second
			metrics := writebackcontroller.NewMetrics(nil)
			l := writebackcontroller.New(writebackcontroller.Config{
				Workers: workers, Timeout: timeout, Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
			}, &fakeAPIServer{hangs: true})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			last, longest, failures := time.Now(), time.Duration(0), 0
			err := l.Run(ctx, newFakeSource(t.Context(), make([]string, 1000)...), func(err error) {
				last, longest = time.Now(), max(longest, time.Since(last))
				if errors.Is(err, context.DeadlineExceeded) {
					failures++
				}
			})
			if err != nil || failures == 0 || longest > 2*timeout {
				t.Errorf("%d workers: error %v, %d failed passes, longest gap %v; want failed passes and a gap of at most %v", workers, err, failures, longest, 2*timeout)
			}
		})
	}
}

func TestRun_PassesResultsToTheSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		throttled := apierrors.NewTooManyRequests("later", 3)
		s := newFakeSource(t.Context(), "a", "b", "c", "d")
		h := newFixture(t, &fakeAPIServer{failures: map[string]error{
			"a": nodestore.ErrNodeMissing, "b": throttled, "d": apierrors.NewTooManyRequests("much later", 3600),
		}})
		h.run(t, s, 1500*time.Millisecond)
		if err := s.finished["a"].Err; !errors.Is(err, sessioncontroller.ErrNoOwner) {
			t.Errorf("a: error %v, want ErrNoOwner", err)
		}
		if got := s.finished["b"]; !apierrors.IsTooManyRequests(got.Err) || got.Pause != 3*time.Second {
			t.Errorf("b: %+v, want a pause of 3 s", got)
		}
		if got := s.finished["d"].Pause; got != 10*time.Second {
			t.Errorf("d: pause %v, want the maximum of 10 s", got)
		}
		want := sessioncontroller.WriteResult{Lease: written}
		if diff := cmp.Diff(want, s.finished["c"], cmp.AllowUnexported(writeback.LeaseRecord{})); diff != "" {
			t.Errorf("c (-want +got):\n%s", diff)
		}
		counted := map[string]float64{"first/none/no_owner": 1, "first/none/throttled": 2, "first/update/success": 1}
		if diff := cmp.Diff(counted, writes(t, h.registry)); diff != "" {
			t.Errorf("trivet_lease_writes_total (-want +got):\n%s", diff)
		}
	})
}

// writes returns trivet_lease_writes_total by "reason/verb/result".
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
			counts[labels[0].GetValue()+"/"+labels[2].GetValue()+"/"+labels[1].GetValue()] = metric.GetCounter().GetValue()
		}
	}
	return counts
}
