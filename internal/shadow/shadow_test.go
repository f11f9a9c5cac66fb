package shadow_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
)

func at(seconds int) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(seconds) * time.Second)
}

func newTracker(t *testing.T) (*shadow.Tracker, *prometheus.Registry) {
	t.Helper()
	cfg := shadow.DefaultConfig("endpointslices", "other")
	cfg.Loops = []string{"endpointslices"}
	registry := prometheus.NewRegistry()
	trackers, err := shadow.New(cfg, registry)
	if err != nil {
		t.Fatal(err)
	}
	if trackers.Tracker("other") != nil || len(trackers.All()) != 1 {
		t.Fatalf("trackers of %v, want the selected loop alone", trackers.Loops())
	}
	return trackers.Tracker("endpointslices"), registry
}

func wrong(kind difference.Kind, name string) difference.Difference {
	return difference.Difference{Kind: kind, Object: difference.Object{Kind: "EndpointSlice", Name: name}}
}

func everything(string) bool { return true }

func TestTracker_DeletedObjectsAndThoseOfOtherReplicasAreForgotten(t *testing.T) {
	tracker, registry := newTracker(t)
	for _, seconds := range []int{0, 30} {
		tracker.Observe(at(seconds), "services/a", []difference.Difference{wrong(difference.Content, "a-1")})
		tracker.Observe(at(seconds), "services/b", []difference.Difference{wrong(difference.Packing, "b-1")})
		tracker.Passed(at(seconds), 2, 0, everything)
	}
	found := tracker.Comparison(10)
	if len(found.Differences) != 2 || found.Compared != 2 || found.Undetermined != "" || found.Passes != 2 {
		t.Fatalf("comparison = %+v, want two differences", found)
	}
	if limited := tracker.Comparison(1); len(limited.Differences) != 1 || limited.Differences[0].Kind != difference.Content {
		t.Errorf("the one difference of a limited answer is %+v, want the one of content", limited.Differences)
	}
	tracker.Passed(at(31), 1, 0, func(subject string) bool { return subject == "services/b" })
	if found := tracker.Comparison(10); len(found.Differences) != 1 || found.Counts[shadow.Count{Kind: difference.Content}] != 0 {
		t.Errorf("comparison after a deletion = %+v, want one difference", found)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total, series := 0.0, 0
	for _, family := range families {
		if family.GetName() == "trivet_shadow_differences" {
			series = len(family.GetMetric())
		}
		if family.GetName() == "trivet_shadow_differences_total" {
			for _, metric := range family.GetMetric() {
				total += metric.GetCounter().GetValue()
			}
		}
	}
	if series != 2*len(difference.Kinds()) {
		t.Errorf("%d series of trivet_shadow_differences, want one for each kind and explanation", series)
	}
	if total != 2 {
		t.Errorf("trivet_shadow_differences_total adds up to %v, want 2: a standing difference counts once", total)
	}
}

func TestTracker_DoubtSaysWhyAndSettlesAnew(t *testing.T) {
	tracker, _ := newTracker(t)
	if tracker.Comparison(1).Undetermined == "" {
		t.Error("a comparison without a pass is determined")
	}
	for _, seconds := range []int{0, 30} {
		tracker.Observe(at(seconds), "services/a", []difference.Difference{wrong(difference.Content, "a-1")})
		tracker.Passed(at(seconds), 1, 0, everything)
	}
	tracker.Doubt(at(31), "the watch of pods is late")
	if found := tracker.Comparison(10); found.Undetermined != "the watch of pods is late" || len(found.Differences) != 0 || !found.Since.IsZero() {
		t.Errorf("comparison in doubt = %+v", found)
	}
	tracker.Observe(at(62), "services/a", []difference.Difference{wrong(difference.Content, "a-1")})
	tracker.Passed(at(62), 1, 0, everything)
	if found := tracker.Comparison(10); len(found.Differences) != 0 || !found.Since.Equal(at(62)) || found.Settling != 1 {
		t.Errorf("comparison after a doubt = %+v, want nothing that counts", found)
	}
	tracker.Passed(at(63), 1, 3, everything)
	if tracker.Comparison(10).Undetermined == "" {
		t.Error("a pass that could not read three objects is determined")
	}
}

func TestTracker_VerdictsAreCountedByWhichWasFirst(t *testing.T) {
	tracker, _ := newTracker(t)
	for i := range 150 {
		tracker.Verdict(shadow.Verdict{Node: "n", Trivet: at(i), Written: at(i + 30)})
	}
	tracker.Verdict(shadow.Verdict{Node: "late", Trivet: at(10), Written: at(5)})
	found := tracker.Comparison(1)
	if found.Both != 151 || found.Earlier != 150 || len(found.Verdicts) != 100 || found.Verdicts[0].Node != "late" || found.Verdicts[0].Lead() != -5*time.Second {
		t.Errorf("%d verdicts, %d earlier, %d kept, first %+v", found.Both, found.Earlier, len(found.Verdicts), found.Verdicts[0])
	}
}

func TestConfig_NamesEveryProblem(t *testing.T) {
	for name, test := range map[string]struct {
		loops, dryRun []string
		settle        time.Duration
		want          string
	}{
		"none":             {settle: time.Minute},
		"one":              {dryRun: []string{"a"}, settle: time.Minute},
		"unknown":          {dryRun: []string{"c"}, settle: time.Minute, want: `--dry-run: "c" has no dry run; loops with a dry run: a, b`},
		"disabled as well": {dryRun: []string{"a"}, loops: []string{"*", "-a"}, settle: time.Minute, want: `--dry-run: "a" is disabled by --loops; loops with a dry run: a, b`},
		"too short":        {settle: time.Millisecond, want: "--dry-run-settle: must be 1s to 1h, got 1ms"},
	} {
		cfg := shadow.DefaultConfig("b", "a")
		cfg.Loops, cfg.Settle = test.dryRun, test.settle
		var got []string
		for _, err := range cfg.Validate(test.loops) {
			got = append(got, err.Error())
		}
		if strings.Join(got, "\n") != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Thousands of Services may lie in other slices than upstream's, and one has a wrong endpoint.
func TestTracker_KeepsWhatHasNoReasonBeforeTheRest(t *testing.T) {
	cfg := shadow.DefaultConfig("loop")
	cfg.Loops, cfg.Settle = []string{"loop"}, time.Second
	trackers, err := shadow.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	tracker := trackers.Tracker("loop")
	begin := time.Now()
	for pass := range 3 {
		now := begin.Add(time.Duration(pass) * time.Second)
		for i := range 3000 {
			tracker.Observe(now, fmt.Sprintf("services/%d", i), []difference.Difference{{Kind: difference.Packing, Reason: "X"}})
		}
		tracker.Observe(now, "services/wrong", []difference.Difference{{Kind: difference.Content}})
	}
	found := tracker.Comparison(200)
	if !slices.ContainsFunc(found.Differences, func(d shadow.Difference) bool { return d.Subject == "services/wrong" }) {
		t.Error("the difference without a reason is not among those that are listed")
	}
}
