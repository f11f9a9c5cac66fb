package monitoring_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

var promtool = flag.String("promtool", "", "promtool, for the tests of the alerts; without it they are skipped")

// faults are the series of a healthy cluster, and what each fault replaces of them.
type faults struct {
	Healthy map[string]string `json:"healthy"`
	Faults  []struct {
		Alert  string            `json:"alert"`
		Also   []string          `json:"also"`
		Series map[string]string `json:"series"`
	} `json:"faults"`
}

// ruleTest is a test of promtool. ALERTS has a series for each alert.
type ruleTest struct {
	Name    string           `json:"name"`
	Series  []inputSeries    `json:"input_series"`
	Samples []expressionTest `json:"promql_expr_test"`
}

type inputSeries struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type expressionTest struct {
	Expr     string   `json:"expr"`
	EvalTime string   `json:"eval_time"`
	Samples  []sample `json:"exp_samples"`
}

type sample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// newRuleTest expects that just these alerts fire at each of the minutes.
func newRuleTest(name string, series map[string]string, minutes []int, firing ...string) ruleTest {
	made := ruleTest{Name: name}
	for _, of := range slices.Sorted(maps.Keys(series)) {
		made.Series = append(made.Series, inputSeries{Series: of, Values: series[of]})
	}
	for _, minute := range minutes {
		test := expressionTest{Expr: `group by (alertname) (ALERTS{alertstate="firing"})`, EvalTime: fmt.Sprintf("%dm", minute)}
		for _, alert := range firing {
			test.Samples = append(test.Samples, sample{Labels: fmt.Sprintf("{alertname=%q}", alert), Value: 1})
		}
		made.Samples = append(made.Samples, test)
	}
	return made
}

func loadFaults(t *testing.T) (loaded faults) {
	t.Helper()
	read(t, folder+"/tests/faults.yaml", func(content []byte) error { return yaml.UnmarshalStrict(content, &loaded) })
	return loaded
}

// Each alert has a fault, and each series of a fault replaces one of the healthy cluster.
func TestFaults_CoverEachAlert(t *testing.T) {
	loaded := loadFaults(t)
	metrics := documented(t)
	for series := range loaded.Healthy {
		for _, problem := range problems(series, metrics) {
			t.Errorf("the healthy cluster: %s", problem)
		}
	}
	tested := map[string]bool{}
	for _, fault := range loaded.Faults {
		tested[fault.Alert] = true
		for series := range fault.Series {
			if _, healthy := loaded.Healthy[series]; !healthy {
				t.Errorf("%s changes %s, which the healthy cluster has not", fault.Alert, series)
			}
		}
	}
	for _, a := range alerts(t) {
		if !tested[a.Alert] {
			t.Errorf("no fault of %s", a.Alert)
		}
	}
}

func TestAlerts_FireInTheirFaultOnly(t *testing.T) {
	if *promtool == "" {
		t.Skip("without -promtool; make test-alerts builds it")
	}
	loaded := loadFaults(t)
	always := []int{0, 1, 5, 10, 15, 20, 30, 45, 60, 90, 120}
	tests := []ruleTest{newRuleTest("healthy", loaded.Healthy, always)}
	for _, fault := range loaded.Faults {
		series := maps.Clone(loaded.Healthy)
		maps.Copy(series, fault.Series)
		tests = append(tests, newRuleTest(fault.Alert, series, []int{120}, append([]string{fault.Alert}, fault.Also...)...))
	}
	var rules []string
	for _, path := range ruleFiles(t) {
		absolute, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, absolute)
	}
	content, err := yaml.Marshal(map[string]any{"rule_files": rules, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "faults_test.yaml")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), *promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, output)
	}
}
