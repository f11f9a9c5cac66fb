package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/oracle"
)

// Run is one run of a schedule.
type Run struct {
	Seed uint64
	// Command runs the schedule again.
	Command string
	// Steps are the injected steps, in order.
	Steps  []Step
	Report oracle.Report
	// Shrunk describes the shortest schedule with a violation, if one was searched.
	Shrunk string
	// World describes the sizes and the traffic. Cores is the mean number of processors in use.
	World string
	Cores float64
	Took  time.Duration
	// Busy is the share of the time in which a process of the world waited for a processor.
	Busy float64
	// Discarded says why the steps of the run do not count, for a run in which the test itself
	// failed. Such a run may have a Report.
	Discarded string
}

// Step is one step of a run.
type Step struct {
	// Faults are its faults, and Services those that had them.
	Faults, Services []string
	// Injected has each fault with its service and its times.
	Injected []string
	// TooQuiet says why the step does not count.
	TooQuiet []string
}

// key identifies a row of the table.
type key struct{ faults, services string }

// row sums up the steps with the same faults in the same services.
type row struct {
	runs, tooQuiet, violations, undecided int

	worst map[string]oracle.Measure // by service
}

// Table returns the table of all steps with one fault as Markdown: one row for each fault and each
// service that had it. A cell has the longest time for which a rule of that service did not hold,
// of all rules the one closest to its bound.
func Table(runs []Run) string {
	rows := map[key]*row{}
	for _, run := range runs {
		for number, step := range run.Steps {
			if len(step.Faults) < 2 {
				rowOf(rows, strings.Join(step.Faults, " + "), strings.Join(step.Services, ", ")).add(run.Report, number, step)
			}
		}
	}
	return table(rows, "in")
}

// Pairs returns the table of all steps with two faults: one row for each fault, which counts the
// steps that had it.
func Pairs(runs []Run) string {
	rows := map[key]*row{}
	for _, run := range runs {
		for number, step := range run.Steps {
			if len(step.Faults) < 2 {
				continue
			}
			rowOf(rows, "all pairs", "").add(run.Report, number, step)
			for _, fault := range step.Faults {
				rowOf(rows, fault, "").add(run.Report, number, step)
			}
		}
	}
	if len(rows) == 0 {
		return "None were run.\n"
	}
	return table(rows, "")
}

func rowOf(rows map[key]*row, faults, services string) *row {
	k := key{faults, services}
	if rows[k] == nil {
		rows[k] = &row{worst: map[string]oracle.Measure{}}
	}
	return rows[k]
}

// table writes rows in order. A table without a header for the services has no column of them.
func table(rows map[key]*row, in string) string {
	var text strings.Builder
	services := []string{history.Leasesvc, history.Bootstrapsvc, history.Slicesvc, history.Gateway}
	columns := append([]string{"runs", "violations", "undecided"}, services...)
	if in != "" {
		columns = append([]string{in}, columns...)
	}
	fmt.Fprintf(&text, "| fault | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	order := slices.SortedFunc(maps.Keys(rows), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.faults, b.faults), cmp.Compare(a.services, b.services))
	})
	for _, k := range order {
		r := rows[k]
		count := fmt.Sprint(r.runs)
		if r.tooQuiet > 0 {
			count += fmt.Sprintf(" (and %d below the floor)", r.tooQuiet)
		}
		fmt.Fprintf(&text, "| %s |", k.faults)
		if in != "" {
			fmt.Fprintf(&text, " %s |", cmp.Or(k.services, "all"))
		}
		fmt.Fprintf(&text, " %s | %d | %d |", count, r.violations, r.undecided)
		for _, service := range services {
			fmt.Fprintf(&text, " %s |", cell(r.worst[service]))
		}
		text.WriteString("\n")
	}
	return text.String()
}

func (r *row) add(from oracle.Report, number int, step Step) {
	if len(step.TooQuiet) > 0 {
		r.tooQuiet++
	} else {
		r.runs++
	}
	for _, v := range from.Violations {
		if v.Step == number {
			r.violations++
		}
	}
	for _, v := range from.Undecided {
		if v.Step == number {
			r.undecided++
		}
	}
	for _, m := range from.Measures {
		if before, known := r.worst[m.Service]; m.Step == number && (!known || share(m) > share(before)) {
			r.worst[m.Service] = m
		}
	}
}

// share compares a time with its bound.
func share(m oracle.Measure) float64 { return float64(m.Took) / float64(max(m.Bound, 1)) }

// cell has the time by the clock and the bound, and above it the part for which the machine may
// account.
func cell(m oracle.Measure) string {
	if m.Rule == "" {
		return "–"
	}
	text := fmt.Sprintf("%s %.1f s / %.0f s", m.Rule, m.Took.Seconds(), m.Bound.Seconds())
	if m.Took > m.Bound && m.Stalled > 0 {
		text += fmt.Sprintf(" (%.1f s waiting)", m.Stalled.Seconds())
	}
	return text
}

func injected(step Step) string {
	if len(step.Injected) > 0 {
		return strings.Join(step.Injected, " + ")
	}
	return strings.Join(step.Faults, " + ")
}

// shown is how many violations of one rule in one step are listed.
const shown = 3

// Violations lists the violations with the seed and the command of their run, or says that there
// are none.
func Violations(runs []Run) string {
	return list(runs, func(run Run) []oracle.Violation { return run.Report.Violations })
}

// Undecided lists the breaches for which the machine may account.
func Undecided(runs []Run) string {
	return list(runs, func(run Run) []oracle.Violation { return run.Report.Undecided })
}

func list(runs []Run, findings func(Run) []oracle.Violation) string {
	var text strings.Builder
	for _, run := range runs {
		found := findings(run)
		if len(found) == 0 {
			continue
		}
		text.WriteString("Seed " + fmt.Sprint(run.Seed))
		if run.Discarded != "" {
			text.WriteString(", a discarded run")
		}
		fmt.Fprintf(&text, ", `%s`:\n\n", run.Command)
		count := map[string]int{} // by step, service and rule
		for _, v := range found {
			faults := "before the first fault"
			if v.Step >= 0 && v.Step < len(run.Steps) {
				faults = "step " + fmt.Sprint(v.Step+1) + ", " + injected(run.Steps[v.Step])
			}
			of := faults + ": " + v.Service + " " + v.Rule
			if count[of]++; count[of] <= shown {
				fmt.Fprintf(&text, "- %s: %v\n", faults, v)
			}
		}
		for _, of := range slices.Sorted(maps.Keys(count)) {
			if further := count[of] - shown; further > 0 {
				fmt.Fprintf(&text, "- %s: %d further ones\n", of, further)
			}
		}
		if run.Shrunk != "" {
			fmt.Fprintf(&text, "\nThe shortest schedule found that still fails: %s\n", run.Shrunk)
		}
		text.WriteString("\n")
	}
	if text.Len() == 0 {
		return "None.\n"
	}
	return text.String()
}
