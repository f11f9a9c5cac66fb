package report

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/oracle"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

func TestTable_HasTheWorstOfEachFaultAndService(t *testing.T) {
	kill := Step{Faults: []string{"leader killed"}, Services: []string{history.Slicesvc}}
	quiet := kill
	quiet.TooQuiet = []string{"0 answers"}
	measure := func(step int, rule string, seconds int) oracle.Measure {
		return oracle.Measure{Rule: rule, Service: history.Slicesvc, Step: step, Took: time.Duration(seconds) * time.Second, Bound: 6 * time.Second}
	}
	runs := []Run{
		{Seed: 1, Command: "make robustness FIRST=1", Steps: []Step{kill, kill}, Report: oracle.Report{
			Measures:   []oracle.Measure{measure(-1, "present", 6), measure(0, "holder", 3), measure(0, "absent", 2), measure(1, "holder", 4)},
			Violations: []oracle.Violation{{Rule: "stale", Service: history.Slicesvc, Step: 1, Text: "spoiled"}},
			Undecided:  []oracle.Violation{{Rule: "present", Service: history.Slicesvc, Step: 0, Text: "late"}},
			Traffic:    map[string]int{"stale": 3},
		}},
		{Seed: 2, Steps: []Step{quiet, {Faults: []string{"a", "b"}}}, World: "small", Cores: 0.5, Report: oracle.Report{Measures: []oracle.Measure{measure(1, "holder", 5)}}},
	}
	table := Table(runs)
	for _, want := range []string{
		"| leader killed | slicesvc | 2 (and 1 below the floor) | 1 | 1 | – | – | holder 4.0 s / 6 s | – |",
	} {
		if !strings.Contains(table, want+"\n") {
			t.Errorf("the table has no row\n%s\n:\n%s", want, table)
		}
	}
	if strings.Contains(table, "| a") {
		t.Errorf("the table of single faults has a pair:\n%s", table)
	}
	for _, want := range []string{"| all pairs | 1 | 0 | 0 |", "| a | 1 | 0 | 0 | – | – | holder 5.0 s / 6 s | – |", "| b | 1 | 0 | 0 |"} {
		if pairs := Pairs(runs); !strings.Contains(pairs, want) {
			t.Errorf("the table of pairs has no row %s:\n%s", want, pairs)
		}
	}
	if text := worlds(runs[1:]); !strings.Contains(text, "| small | 1 | 0.50 |") {
		t.Errorf("worlds:\n%s", text)
	}
	if text := Undecided(runs); !strings.Contains(text, "step 1, leader killed") || !strings.Contains(text, "late") {
		t.Errorf("undecided:\n%s", text)
	}
	promised := promises(oracle.Bounds{Promised: map[string]time.Duration{"holder": 6 * time.Second}}, runs)
	for _, want := range []string{"| 6 s | 5.0 s | 0 | 0 | 0 |", "| always |  | 3 | 1 | 0 |"} {
		if !strings.Contains(promised, want) {
			t.Errorf("the table of promises has no %s:\n%s", want, promised)
		}
	}
	if text := Violations(runs); !strings.Contains(text, "make robustness FIRST=1") || !strings.Contains(text, "step 2, leader killed") || !strings.Contains(text, "spoiled") {
		t.Errorf("violations:\n%s", text)
	}
	runs[0].Report.Violations = slices.Repeat(runs[0].Report.Violations, shown+2)
	if text := Violations(runs); strings.Count(text, "spoiled") != shown || !strings.Contains(text, "slicesvc stale: 2 further ones") {
		t.Errorf("many violations:\n%s", text)
	}
	if text := Violations(runs[1:]); text != "None.\n" {
		t.Errorf("violations of a run without any: %s", text)
	}
}

func TestDocument_HasResultsAndEachFault(t *testing.T) {
	text := Document(Header{
		First: time.Unix(0, 0), Last: time.Unix(86400, 0), Commit: "abc", Machine: "2 cores", Commands: []string{"make robustness"}, Beside: 2, Times: "fast",
	}, schedule.Table(), oracle.Bounds{Margin: 4 * time.Second}, []Run{{Command: "make it", Discarded: "no etcd\nno disk", Report: oracle.Report{Violations: []oracle.Violation{{Rule: "stale"}}}}})
	for _, want := range []string{"1970-01-01", "1970-01-02", "abc", "2 cores; up to 2 runs at a time", "make robustness", "None.", "runs | 0 in", "1 runs, in which the test itself failed: `make it`: no etcd (and 1 more errors)", "fast", "Seed 0, a discarded run, `make it`:"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, entry := range schedule.Table() {
		if !strings.Contains(text, "| "+string(entry.Kind)+" | "+entry.Number+" |") {
			t.Errorf("the page has no row of %s", entry.Kind)
		}
	}
}
