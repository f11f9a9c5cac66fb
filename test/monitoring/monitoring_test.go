// Package monitoring_test checks the alerts and the dashboards of deploy/monitoring.
package monitoring_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/test/lab/metricstest"
)

const folder = "../../deploy/monitoring"

var update = flag.Bool("update", false, "write the table of alerts in docs/runbooks/README.md instead of comparing it")

// alert is a rule as Prometheus reads it.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func ruleFiles(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(folder + "/rules/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no rules: ", err)
	}
	return paths
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	for _, path := range ruleFiles(t) {
		var file struct {
			Groups []struct {
				Name  string  `json:"name"`
				Rules []alert `json:"rules"`
			} `json:"groups"`
		}
		read(t, path, func(content []byte) error { return yaml.UnmarshalStrict(content, &file) })
		for _, group := range file.Groups {
			all = append(all, group.Rules...)
		}
	}
	return all
}

func read(t *testing.T, path string, parse func([]byte) error) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err == nil {
		err = parse(content)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

const runbookURL = "https://github.com/trivet-dev/trivet/blob/main/docs/runbooks/"

func TestAlerts_SayWhatToDo(t *testing.T) {
	names := []string{"README.md"}
	for _, a := range alerts(t) {
		if slices.Contains(names, a.Alert+".md") {
			t.Errorf("%s is there twice", a.Alert)
		}
		names = append(names, a.Alert+".md")
		if severity := a.Labels["severity"]; severity != "page" && severity != "ticket" {
			t.Errorf("%s has severity %q, want page or ticket", a.Alert, severity)
		}
		if a.For == "" || !strings.HasPrefix(a.Alert, "Trivet") {
			t.Errorf("%s has no `for`, or no name of Trivet", a.Alert)
		}
		if want := runbookURL + a.Alert + ".md"; a.Annotations["runbook_url"] != want {
			t.Errorf("%s has runbook_url %q, want %s", a.Alert, a.Annotations["runbook_url"], want)
		}
		if strings.Count(a.Annotations["summary"], ". ") == 0 || !strings.HasSuffix(a.Annotations["summary"], ".") {
			t.Errorf("%s: the summary %q does not say in two sentences what is wrong and what to do", a.Alert, a.Annotations["summary"])
		}
	}
	entries, err := os.ReadDir("../../docs/runbooks")
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, entry := range entries {
		pages = append(pages, entry.Name())
		read(t, "../../docs/runbooks/"+entry.Name(), func(content []byte) error {
			for _, section := range []string{"# " + strings.TrimSuffix(entry.Name(), ".md"), "## For users", "## See it", "## Do", "## When to wait"} {
				if entry.Name() != "README.md" && !strings.Contains("\n"+string(content), "\n"+section+"\n") {
					return fmt.Errorf("has no %q", section)
				}
			}
			return nil
		})
	}
	slices.Sort(names)
	slices.Sort(pages)
	if diff := cmp.Diff(names, pages); diff != "" {
		t.Errorf("alerts and docs/runbooks differ (-alerts +pages):\n%s", diff)
	}
}

// summaries may use only labels that the expression keeps: Prometheus renders others as nothing.
func TestAlerts_SummariesUseLabelsOfTheExpression(t *testing.T) {
	used := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, a := range alerts(t) {
		for _, match := range used.FindAllStringSubmatch(a.Annotations["summary"], -1) {
			grouped := groupings(a.Expr)
			if len(grouped) > 0 && !slices.Contains(grouped, match[1]) {
				t.Errorf("%s uses label %s, and its expression keeps %v", a.Alert, match[1], grouped)
			}
			if len(grouped) == 0 && match[1] != "job" && match[1] != "pod" {
				t.Errorf("%s uses label %s without a grouping", a.Alert, match[1])
			}
		}
	}
}

// The table of the runbooks is generated from the rules, so that both have one threshold.
func TestRunbooks_ListTheAlerts(t *testing.T) {
	const path, begin, end = "../../docs/runbooks/README.md", "<!-- alerts: make metrics -->\n", "<!-- end of alerts -->"
	var want strings.Builder
	want.WriteString("\n| alert | severity | for | fires when |\n|---|---|---|---|\n")
	for _, a := range alerts(t) {
		fmt.Fprintf(&want, "| [%s](%s.md) | %s | %s | `%s` |\n", a.Alert, a.Alert, a.Labels["severity"], a.For, strings.ReplaceAll(a.Expr, "|", `\|`))
	}
	want.WriteString("\n")
	read(t, path, func(content []byte) error {
		before, rest, found := strings.Cut(string(content), begin)
		table, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			return fmt.Errorf("has no place for the table")
		}
		if *update {
			table = want.String()
			if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
				return err
			}
		}
		if diff := cmp.Diff(want.String(), table); diff != "" {
			t.Errorf("the table of alerts is out of date; run make metrics (-rules +file):\n%s", diff)
		}
		return nil
	})
}

func TestExpressions_NameMetricsAndLabelsThatExist(t *testing.T) {
	metrics := documented(t)
	for _, a := range alerts(t) {
		for _, problem := range problems(a.Expr, metrics) {
			t.Errorf("%s: %s", a.Alert, problem)
		}
	}
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			if !strings.HasSuffix(p.Title, "?") || len(p.Targets) == 0 {
				t.Errorf("%s: panel %q asks nothing or shows nothing", d.Title, p.Title)
			}
			for _, target := range p.Targets {
				for _, problem := range problems(target.Expr, metrics) {
					t.Errorf("%s, %s: %s", d.Title, p.Title, problem)
				}
				for _, match := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
					if !slices.Contains(groupings(target.Expr), match[1]) {
						t.Errorf("%s, %s: the legend has %s, which the expression does not keep", d.Title, p.Title, match[1])
					}
				}
			}
		}
	}
}

// A threshold that a panel draws is one that an alert compares a metric of the panel with.
func TestDashboards_HaveThresholdsOfAlerts(t *testing.T) {
	comparison := regexp.MustCompile(`[<>]=? ([0-9.]+)(?: \* ([0-9]+))?`)
	compared := map[string][]float64{} // by metric
	for _, a := range alerts(t) {
		selectors, _ := parse(a.Expr)
		for _, match := range comparison.FindAllStringSubmatch(a.Expr, -1) {
			value, err := strconv.ParseFloat(match[1], 64)
			if err == nil && match[2] != "" {
				var factor float64
				factor, err = strconv.ParseFloat(match[2], 64)
				value *= factor
			}
			if err != nil {
				t.Fatalf("%s: %v", a.Alert, err)
			}
			for _, s := range selectors {
				compared[s.metric] = append(compared[s.metric], value)
			}
		}
	}
	found := 0
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			var known []float64
			for _, target := range p.Targets {
				selectors, _ := parse(target.Expr)
				for _, s := range selectors {
					known = append(known, compared[s.metric]...)
				}
			}
			for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
				if step.Value == nil {
					continue
				}
				if found++; !slices.Contains(known, *step.Value) {
					t.Errorf("%s, %s: the threshold %v is in no alert about its metrics, which compare with %v", d.Title, p.Title, *step.Value, known)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no panel has a threshold")
	}
}

// An expression with one mistake each has a problem each: the checks above can fail.
func TestExpressions_MistakesAreFound(t *testing.T) {
	metrics := documented(t)
	for _, expression := range []string{
		`trivet_term_held == 0`, `sum by (loop) (trivet_terms_held) > 0`, `trivet_terms_held{loop="a"}`, `trivet_loop_runs_total{result="failure"}`,
		`trivet_term_gap_seconds > 1`, `rate(trivet_terms_held_bucket[5m])`, `trivet_loop_runs_total{result=~"error|failure"}`,
	} {
		if len(problems(expression, metrics)) != 1 {
			t.Errorf("%s: %v, want one problem", expression, problems(expression, metrics))
		}
	}
	for _, expression := range []string{
		`histogram_quantile(0.99, sum by (le) (rate(trivet_term_gap_seconds_bucket{job="a"}[$__rate_interval])))`, `time() - trivet_tls_expiry_timestamp_seconds > 7 * 86400`,
	} {
		if found := problems(expression, metrics); found != nil {
			t.Errorf("%s: %v", expression, found)
		}
	}
}

type dashboard struct {
	UID, Title string
	Panels     []struct {
		Title       string
		Targets     []struct{ Expr, LegendFormat string }
		FieldConfig struct {
			Defaults struct {
				Thresholds struct {
					Steps []struct{ Value *float64 }
				}
			}
		}
	}
}

func dashboards(t *testing.T) (all []dashboard) {
	t.Helper()
	paths, err := filepath.Glob(folder + "/dashboards/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no dashboards: ", err)
	}
	for _, path := range paths {
		var d dashboard
		read(t, path, func(content []byte) error { return json.Unmarshal(content, &d) })
		if d.UID == "" || len(d.Panels) == 0 {
			t.Errorf("%s has no uid or no panels", path)
		}
		all = append(all, d)
	}
	return all
}

// documented reads docs/metrics.md, which tests hold equal to the registries of the programs.
func documented(t *testing.T) map[string]metricstest.Metric {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*) \\|")
	name := regexp.MustCompile("`(\\w+)`")
	metrics := map[string]metricstest.Metric{"up": {Name: "up", Type: "gauge"}}
	read(t, "../../docs/metrics.md", func(content []byte) error {
		for _, match := range row.FindAllStringSubmatch(string(content), -1) {
			m := metricstest.Metric{Name: match[1], Type: match[2], Labels: map[string][]string{}}
			for _, label := range name.FindAllStringSubmatch(match[3], -1) {
				m.Labels[label[1]] = nil
			}
			metrics[m.Name] = m
		}
		return nil
	})
	if len(metrics) < 50 {
		t.Fatalf("metrics.md has %d metrics", len(metrics))
	}
	return metrics
}

// A command or flag that does not exist is worse than none, at three in the morning.
func TestRunbooks_NameCommandsAndFlagsThatExist(t *testing.T) {
	contentOf := func(path string) (text string) {
		read(t, path, func(content []byte) error { text = string(content); return nil })
		return text
	}
	manual, flags := contentOf("../../docs/cli.md"), contentOf("../../docs/flags.md")
	upstream := []string{"--controllers", "--service-node-port-range"}
	command, option := regexp.MustCompile(`(?m)(?:^|`+"`"+`)(trivet(?: [a-z]+)+)`), regexp.MustCompile("`(--[a-z-]+)")
	found := 0
	for _, a := range alerts(t) {
		page := contentOf("../../docs/runbooks/" + a.Alert + ".md")
		for _, match := range command.FindAllStringSubmatch(page, -1) {
			found++
			if !strings.Contains(manual, match[1]) {
				t.Errorf("the runbook of %s names %q, which docs/cli.md does not have", a.Alert, match[1])
			}
		}
		for _, match := range option.FindAllStringSubmatch(page, -1) {
			if !slices.Contains(upstream, match[1]) && !strings.Contains(flags, "`"+match[1]+"`") {
				t.Errorf("the runbook of %s names %s, which docs/flags.md does not have", a.Alert, match[1])
			}
		}
	}
	if found < len(alerts(t)) {
		t.Errorf("%d commands in %d runbooks", found, len(alerts(t)))
	}
}
