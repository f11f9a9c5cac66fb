package bootstrapsvc

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// codesOf has each problem as code and severity, without problems of allocations.
func codesOf(problems []*metav1.Problem) []string {
	var codes []string
	for _, problem := range problems {
		if problem.GetResource() == "baseline" {
			codes = append(codes, problem.GetCode()+" "+problem.GetSeverity().String())
		}
	}
	return codes
}

func TestProblems(t *testing.T) {
	t.Parallel()
	const warning, failed = " SEVERITY_WARNING", " SEVERITY_ERROR"
	for name, c := range map[string]struct {
		damage func(f *fixture)
		wait   time.Duration
		want   []string
	}{
		"none": {func(*fixture) {}, time.Minute, nil},
		"no ready server": {func(f *fixture) {
			f.prober.set(true)
		}, time.Minute, []string{"NO_APISERVER_READY" + failed}},
		"terminating namespace": {func(f *fixture) {
			edit(f.objects, "Namespace kube-public", func(n *corev1.Namespace) { n.Status.Phase = corev1.NamespaceTerminating })
		}, 2 * time.Minute, []string{"BASELINE_CONDITION" + warning}},
		"etcd for a moment": {func(f *fixture) {
			f.keys.fail(apiserverscontroller.ErrUnavailable, nil)
		}, 5 * time.Second, nil},
		"etcd": {func(f *fixture) {
			f.keys.fail(apiserverscontroller.ErrUnavailable, nil)
		}, time.Minute, []string{"ENDPOINTS_STALE" + failed}},
		"EndpointSlices": {func(f *fixture) {
			f.objects.failReadsOf("EndpointSlice kubernetes", errors.New("connection refused"))
		}, 15 * time.Second, nil},
		"kube-apiserver": {func(f *fixture) {
			f.objects.failReads(errors.New("connection refused"))
		}, 3 * time.Minute, []string{"ENDPOINTS_STALE" + failed, "BASELINE_NOT_RECONCILED" + warning, "BASELINE_NOT_RECONCILED" + warning}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				if got := f.Problems(); len(got) != 0 {
					t.Errorf("problems before a term: %v", got)
				}
				f.start(t)
				time.Sleep(time.Minute + time.Second) // between two passes
				c.damage(f)
				time.Sleep(c.wait)
				synctest.Wait()
				if got := codesOf(f.Problems()); !slices.Equal(got, c.want) {
					t.Errorf("problems = %v, want %v: %v", got, c.want, f.Problems())
				}
				f.end(t)
				if got := f.Problems(); len(got) != 0 {
					t.Errorf("problems after the term: %v", got)
				}
			})
		})
	}
}

func TestProblems_ManyReportsOfOneReasonAreOne(t *testing.T) {
	t.Parallel()
	report := baseline.Change{Verb: planned.Report, Reason: baseline.NamespaceTerminating, Detail: "kube-public is being deleted"}
	got := baselineProblems("loop", &baselinecontroller.State{Reports: []baseline.Change{report, report, report}}, time.Now())
	if len(got) != 1 || got[0].GetMessage() != "kube-public is being deleted (and 2 more)" {
		t.Errorf("problems = %v, want one with the number of the others", got)
	}
}

func TestProblems_EmptyEndpoints(t *testing.T) {
	t.Parallel()
	for count, want := range map[int64]int{0: 1, 1: 0} {
		if got := emptyEndpoints(&baselinecontroller.State{Counts: map[string]int64{"endpoint_addresses": count}}); len(got) != want {
			t.Errorf("%d addresses: problems = %v, want %d", count, got, want)
		}
	}
}
