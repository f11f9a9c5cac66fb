package alerts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/test/internal/promtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// detection bounds the time until the condition of a rule holds on a loaded machine.
	detection = 30 * time.Second
	// watchOn is how long a fault lasts after its alert has fired, so that others may.
	watchOn = 5 * time.Second
	// endTime bounds the time until an alert ends, besides the longest range of the rules.
	endTime = 4 * time.Minute
	// quietTime is how long a quiet entry is watched after its end.
	quietTime = 10 * time.Second
)

// result is a row of the table.
type result struct {
	fault
	fired, ended time.Duration // 0 for never
	others       []string
}

// TestAlerts_FireOnRunningServers injects each fault of the table.
func TestAlerts_FireOnRunningServers(t *testing.T) {
	if *prometheusPath == "" || *rulesDir == "" {
		t.Skip("without -alerts.prometheus and -alerts.rules; make test-alerts-live gives both")
	}
	var chosen []fault
	for _, f := range slices.Concat(quiet(), faults()) {
		if name := f.name(); *only == "" || slices.Contains(strings.Split(*only, ","), name) {
			chosen = append(chosen, f)
		}
	}
	if len(chosen) == 0 {
		t.Fatal("no fault has such a name: ", *only)
	}
	w := newWorld(t)
	began := time.Now()
	var rows []result
	for _, f := range chosen {
		t.Run(f.name(), func(t *testing.T) {
			outer := w.T
			w.T = t
			defer func() { w.T = outer }()
			rows = append(rows, w.try(f))
		})
	}
	t.Logf("%d entries in %v", len(rows), time.Since(began).Round(time.Second))
	if *out != "" && *only == "" && !t.Failed() {
		if err := writeTable(*out, rows); err != nil {
			t.Error(err)
		}
	}
	t.Log("\n" + table(rows))
	if *drawer != "" && *pictures != "" && !t.Failed() {
		w.drawDashboards(began)
	}
}

// drawDashboards writes pictures of the shipped dashboards since a time.
func (w *world) drawDashboards(since time.Time) {
	w.Helper()
	paths, err := filepath.Glob("../../deploy/monitoring/dashboards/*.json")
	if err != nil || len(paths) == 0 {
		w.Fatal("no dashboards: ", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, *drawer, append([]string{
		"--prometheus=" + w.metrics.URL(), "--scrape-interval=" + promtest.Period.String(),
		"--from=" + since.Format(time.RFC3339), "--out=" + *pictures,
	}, paths...)...)
	if output, err := command.CombinedOutput(); err != nil {
		w.Errorf("%v: %v\n%s", command.Args, err, output)
	}
}

func (f fault) name() string {
	if f.Alert != "" {
		return f.Alert
	}
	return strings.ReplaceAll(f.What, " ", "-")
}

// try injects a fault once nothing is wrong, and judges all evaluations until nothing is wrong
// again.
func (w *world) try(f fault) result {
	w.Helper()
	w.awaitNothing()
	began := time.Now()
	row := result{fault: f}
	undo := sync.OnceFunc(f.Inject(w))
	defer undo()
	if f.Alert == "" {
		undo()
		testkit.Pause(context.Background(), quietTime)
	} else {
		var err error
		limit := max(f.Slow, detection) + w.rule(f.Alert).waits()
		if row.fired, err = w.metrics.AwaitFiring(context.Background(), f.Alert, limit); err != nil {
			w.Errorf("%v; its expression: %s", err, w.rule(f.Alert).Expr)
		}
		testkit.Pause(context.Background(), watchOn)
		undo()
		undone := time.Now()
		w.awaitNothing()
		row.ended = time.Since(undone)
	}
	w.await(startTimeout, w.works)
	w.awaitNothing()
	var err error
	if row.others, err = w.metrics.Judge(context.Background(), began, time.Now(), promtest.Expectation{
		Alert: f.Alert, Also: f.Also, RealTime: realTime(),
	}); err != nil {
		w.Error(err)
	}
	w.Logf("%s: fired after %v, ended after %v, others %v", f.name(), row.fired.Round(time.Second), row.ended.Round(time.Second), row.others)
	return row
}

func (w *world) awaitNothing() {
	w.Helper()
	if err := w.metrics.AwaitNothing(context.Background(), endTime); err != nil {
		w.Fatal(err)
	}
}

// rule is a rule as it is shipped.
type rule struct {
	Alert string `json:"alert"`
	Expr  string `json:"expr"`
	For   string `json:"for"`
}

// waits is the time that the scaled rule needs besides the fault's own.
func (r rule) waits() time.Duration {
	d, err := time.ParseDuration(r.For)
	if err != nil {
		return 0
	}
	return time.Duration(float64(d) / *scale)
}

func shippedRules() (map[string]rule, error) {
	paths, err := filepath.Glob("../../deploy/monitoring/rules/*.yaml")
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no rules: %w", err)
	}
	all := map[string]rule{}
	for _, path := range paths {
		var file struct {
			Groups []struct {
				Rules []rule `json:"rules"`
			} `json:"groups"`
		}
		content, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(content, &file)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, group := range file.Groups {
			for _, r := range group.Rules {
				all[r.Alert] = r
			}
		}
	}
	return all, nil
}

func (w *world) rule(alert string) rule {
	w.Helper()
	all, err := shippedRules()
	if err != nil {
		w.Fatal(err)
	}
	return all[alert]
}

// Each shipped alert has an entry or more, or a reason why only promtool tries it; and the reverse.
func TestFaults_CoverEachAlert(t *testing.T) {
	shipped, err := shippedRules()
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, f := range faults() {
		tried[f.Alert] = true
		for also, reason := range f.Also {
			if _, exists := shipped[also]; !exists || reason == "" {
				t.Errorf("%s: alert %q does not exist, or has no reason", f.Alert, also)
			}
		}
	}
	for alert, reason := range promtoolOnly() {
		if reason == "" || tried[alert] {
			t.Errorf("%s has no reason, or an entry beside it", alert)
		}
		tried[alert] = true
	}
	for alert := range shipped {
		if !tried[alert] {
			t.Errorf("%s has no entry", alert)
		}
	}
	if len(tried) != len(shipped) {
		t.Errorf("%d alerts are tried, and %d exist", len(tried), len(shipped))
	}
}
