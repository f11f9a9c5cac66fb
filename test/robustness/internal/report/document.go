package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// Header says of what and where the runs were, and when they ended.
type Header struct {
	First, Last     time.Time
	Commit, Machine string
	// Commands are those of the pieces, in order.
	Commands []string
}

// Document returns the page of the runs.
func Document(header Header, entries []schedule.Entry, runs []Run) string {
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
kube-apiserver and at the gateway, and judges the record. `+"`test/robustness/doc.go`"+` describes the method, and
`+"`test/robustness/internal/oracle/doc.go`"+` each rule. [robustness-record.md](robustness-record.md) lists what the runs found.

| | |
|---|---|
| dates | %s to %s |
| commit | %s |
| machine | %s |
| commands | %s |
| runs | %d in %s, with %d steps, %d of them with two faults; %d had too little traffic to count |

## Results

Each row is a fault in one service. A cell has, of all rules of a service, the one closest to its bound: the longest time for
which it did not hold, and the bound. A time counts from the start of the fault, or from its end if the services can do
nothing before it. A violation is a breach of a rule without a bound, or a time of more than four seconds above a bound. The
time in which a process of the world could run and waited for a processor is not held against it.

%s
## Pairs

Each row counts the steps in which the fault was injected together with any other one.

%s
## Violations

%s
## Worlds

%s
## Faults

| fault | row of the matrix | services | duration | injection |
|---|---|---|---|---|
`, date(header.First), date(header.Last), header.Commit, header.Machine, "`"+strings.Join(header.Commands, "`, `")+"`", len(runs), took.Round(time.Second),
		steps, pairs, quiet, Table(runs), Pairs(runs), Violations(runs), worlds(runs))
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
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s |\n", e.Kind, e.Number, in, lasts, what)
	}
	return text.String()
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// worlds returns a table of the sizes of the worlds and what they cost.
func worlds(runs []Run) string {
	byWorld := map[string][]Run{}
	for _, run := range runs {
		byWorld[run.World] = append(byWorld[run.World], run)
	}
	var text strings.Builder
	text.WriteString("| world | runs | cores in use | waiting for a processor |\n|---|---|---|---|\n")
	for _, world := range slices.Sorted(maps.Keys(byWorld)) {
		var cores, busy float64
		for _, run := range byWorld[world] {
			cores, busy = max(cores, run.Cores), max(busy, run.Busy)
		}
		fmt.Fprintf(&text, "| %s | %d | %.2f | %.0f %% of the time |\n", world, len(byWorld[world]), cores, 100*busy)
	}
	return text.String()
}
