package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/oracle"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// Header says of what and where the runs were, and when they ended.
type Header struct {
	First, Last     time.Time
	Commit, Machine string
	// Commands are those of the pieces, in order. Beside is the largest number of runs at a time.
	Commands []string
	Beside   int
	// Times has the times of the services that are shorter than by default.
	Times string
}

// Document returns the page of the runs.
func Document(header Header, entries []schedule.Entry, bounds oracle.Bounds, all []Run) string {
	runs := slices.DeleteFunc(slices.Clone(all), func(r Run) bool { return r.Discarded != "" })
	var text strings.Builder
	steps, quiet, pairs := 0, 0, 0
	var took time.Duration
	for _, run := range runs {
		steps += len(run.Steps)
		took += run.Took
		for _, step := range run.Steps {
			if len(step.TooQuiet) > 0 {
				quiet++
			}
			if len(step.Faults) > 1 {
				pairs++
			}
		}
	}
	fmt.Fprintf(&text, `# Robustness: all services under faults

This page is written by `+"`make robustness`"+`. It injects faults into running services, records what happens in etcd, at
kube-apiserver and at the gateway, and judges the record. `+"`test/robustness/doc.go`"+` describes the method.
[robustness-record.md](robustness-record.md) lists what the runs found, and the limits that are known.

| | |
|---|---|
| dates | %s to %s |
| commit | %s |
| machine | %s; %s |
| commands | %s |
| runs | %d in %s, with %d steps, %d of them with two faults; %d had too little traffic to count |
| discarded | %s |
| times | %s |

## Promises

Each promise holds always, or is broken for no longer than its bound. The bound counts from the start of a fault, or from its
end if the services can do nothing before it. The bounds of the rules `+"`told` and `silence`"+` always count from its start, except that
clients refuse a service whose certificate has expired. The longest time is by the clock. A time of more than %.0f s above the bound
is a violation. It is undecided if it is longer than that by the clock only: without the time in which a process waited for a
processor, the promise was kept.

%s
## Faults one at a time

Each row is a fault in one service. A cell has one promise of each service: the one whose longest time was closest to its bound,
with that time and the bound. A dash means that none of them was broken for any time.

%s
## Faults in pairs

Each row counts the steps in which the fault was injected together with any other one. Two faults of one service are together
unless the end of one would end the other.

%s
## Violations

%s
## Undecided

%s
## Not shown

- The services have two replicas here, or three with `+"`FULL=1`"+`. Thousands of agents are in [resources.md](resources.md).
- Faults last for seconds. Outages of five minutes are in [resources.md](resources.md).
- "rolling update" replaces each replica by a build of the same source with another version. Updates from the previous commit
  are tested by `+"`TestUpgrade_FromThePreviousCommitUnderLoad`"+`.
- The gateway has one replica. It has no HTTP listener, and no fault of its link to etcd.
- The links to kube-apiserver have no TLS, and nothing is between kube-apiserver and etcd. Limits of calls per second are off
  for callers on the same machine, and each caller has all rights: test/access and test/abuse have both.
- The clocks of kubelets step. Those of the services step in tests of one process only.
- The loop taint-eviction and the mirroring of Endpoints do not run. Of a Node the condition Ready is judged, and not its taints.
- Each seed has one profile of traffic. In those without changes of Pods, a fault in slicesvc shows little.
- Of the gateway, lists of shards, Nodes, slices and findings are judged, and calls that fail far from a fault. How long lists of
  Nodes, slices and findings fail during a fault has no bound: up to 23 s while etcd is away. Its watches and HTTP are not judged.
- A run that the test cannot complete is discarded, also if a program under test is the cause. Its violations are listed, and its
  steps do not count.
- A request to Kubernetes without an answer is judged by its effects only: nothing says which replica sent it.
- Writes of a former leader to keys of Trivet in etcd are judged by [the tests of terms](faults.md).

## Machine

%s
## Faults

| fault | row | services | duration | injection |
|---|---|---|---|---|
`, date(header.First), date(header.Last), header.Commit, header.Machine, beside(header.Beside), "`"+strings.Join(header.Commands, "`, `")+"`", len(runs), took.Round(time.Second),
		steps, pairs, quiet, discarded(all), header.Times, bounds.Margin.Seconds(), promises(bounds, runs), Table(runs), Pairs(runs), Violations(all), Undecided(runs), worlds(runs))
	for _, e := range entries {
		in, lasts := "all at once", "–"
		if len(e.Services) > 0 {
			in = strings.Join(e.Services, ", ")
		}
		if e.Most > 0 {
			lasts = fmt.Sprintf("%.0f to %.0f s", e.Least.Seconds(), e.Most.Seconds())
		}
		what := e.What
		if e.Excuses {
			what += "; bounds count from its end"
		} else if e.Notice > 0 {
			what += fmt.Sprintf("; bounds count from %.0f s after its begin, when a replica gives its shards up", e.Notice.Seconds())
			if len(e.Shows) > 0 {
				what += ", and that of " + strings.Join(e.Shows, " and ") + " from its begin"
			}
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s |\n", e.Kind, e.Number, in, lasts, what)
	}
	return text.String()
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

func beside(runs int) string {
	if runs < 2 {
		return "one run at a time"
	}
	return fmt.Sprintf("up to %d runs at a time", runs)
}

func discarded(runs []Run) string {
	var why []string
	for _, run := range runs {
		if run.Discarded != "" {
			first, others, more := strings.Cut(run.Discarded, "\n")
			if more {
				first += fmt.Sprintf(" (and %d more errors)", 1+strings.Count(others, "\n"))
			}
			why = append(why, fmt.Sprintf("`%s`: %s", run.Command, first))
		}
	}
	if len(why) == 0 {
		return "no run"
	}
	return fmt.Sprintf("%d runs, in which the test itself failed: %s", len(why), strings.Join(why, "; "))
}

// promises returns a table of the rules: how often each was judged, and the longest time for which
// it did not hold.
func promises(bounds oracle.Bounds, runs []Run) string {
	var text strings.Builder
	text.WriteString("| promise | of | what holds | bound | longest time | judged | violations | undecided |\n|---|---|---|---|---|---|---|---|\n")
	for _, rule := range oracle.Rules() {
		judged, violations, undecided := 0, 0, 0
		var longest time.Duration
		for _, run := range runs {
			judged += run.Report.Traffic[rule.Name]
			violations += countOf(rule.Name, run.Report.Violations)
			undecided += countOf(rule.Name, run.Report.Undecided)
			for _, m := range run.Report.Measures {
				if m.Rule == rule.Name {
					longest = max(longest, m.Took)
				}
			}
		}
		bound, reached := "always", ""
		if promised, timed := bounds.Promised[rule.Name]; timed && rule.Name != "call" {
			bound, reached = fmt.Sprintf("%.0f s", promised.Seconds()), fmt.Sprintf("%.1f s", longest.Seconds())
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s | %d | %d | %d |\n", rule.Name, rule.Service, rule.Promise, bound, reached, judged, violations, undecided)
	}
	return text.String()
}

func countOf(rule string, found []oracle.Violation) int {
	count := 0
	for _, v := range found {
		if v.Rule == rule {
			count++
		}
	}
	return count
}

// worlds returns a table of the sizes of the worlds and what they cost.
func worlds(runs []Run) string {
	byWorld := map[string][]Run{}
	for _, run := range runs {
		byWorld[run.World] = append(byWorld[run.World], run)
	}
	var text strings.Builder
	text.WriteString("| what ran | runs | most cores in use | waiting for a processor, at most |\n|---|---|---|---|\n")
	for _, world := range slices.Sorted(maps.Keys(byWorld)) {
		var cores, busy float64
		for _, run := range byWorld[world] {
			cores, busy = max(cores, run.Cores), max(busy, run.Busy)
		}
		fmt.Fprintf(&text, "| %s | %d | %.2f | %.0f %% of the time |\n", world, len(byWorld[world]), cores, 100*busy)
	}
	return text.String()
}
