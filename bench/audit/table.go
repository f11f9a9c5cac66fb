package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// row is one figure of bootstrapsvc and, if there is one, of another program in the same run. Lower
// is better.
type row struct {
	what string
	ours float64
	// beside is the other program's figure, or nil. whose is the program's name.
	beside *float64
	whose  string
	show   func(float64) string
	// most is the largest allowed value; 0 for no target.
	most float64
	// spread describes the distribution of the figure.
	spread string
}

// none is shown for a figure that does not exist.
const none = "–"

func targetsMet(rows []row) bool { return !slices.ContainsFunc(rows, row.missed) }

func (r row) missed() bool { return r.most > 0 && r.ours > r.most }

func printTable(out io.Writer, rows []row) {
	fmt.Fprintln(out, "| what | must reach | bootstrapsvc | beside it | ÷ | |\n|---|---|---|---|---|---|")
	for _, r := range rows {
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s |\n", r.what, r.target(), r.show(r.ours)+r.spread, r.theirs(), r.ratio(), r.verdict())
	}
}

func (r row) target() string {
	if r.most == 0 {
		return none
	}
	return "≤ " + r.show(r.most)
}

func (r row) theirs() string {
	switch {
	case r.beside != nil:
		return r.whose + ": " + r.show(*r.beside)
	case r.whose != "":
		return r.whose
	}
	return none
}

func (r row) ratio() string {
	if r.beside == nil || *r.beside == 0 {
		return none
	}
	return fmt.Sprintf("%.2f", r.ours / *r.beside)
}

// verdict describes whether the target is met and whether the other program is better.
func (r row) verdict() string {
	switch {
	case r.missed():
		return "**missed**"
	case r.beside != nil && *r.beside < r.ours && r.most == 0:
		return "behind"
	case r.most == 0:
		return ""
	}
	return "met"
}

// than adds the other program's figure.
func (r row) than(whose string, figure float64) row {
	r.whose, r.beside = whose, &figure
	return r
}

// times are sorted.
type times []time.Duration

func sorted(all []time.Duration) times {
	all = slices.Clone(all)
	slices.Sort(all)
	return all
}

func (t times) worst() float64 { return t[len(t)-1].Seconds() }

func (t times) median() string { return formatSeconds(t[(len(t)-1)/2].Seconds()) }

// worstOf returns the row of the largest of several times.
func worstOf(what string, all []time.Duration, most time.Duration) row {
	ours := sorted(all)
	return row{
		what: what, ours: ours.worst(), show: formatSeconds, most: most.Seconds(),
		spread: fmt.Sprintf(" (worst of %d, median %s)", len(ours), ours.median()),
	}
}

// formatSeconds formats seconds with about three digits.
func formatSeconds(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.2f s", seconds)
	case seconds >= 0.001:
		return fmt.Sprintf("%.1f ms", seconds*1000)
	}
	return fmt.Sprintf("%.0f µs", seconds*1e6)
}

func mebibytes(bytes float64) string { return fmt.Sprintf("%.0f MiB", bytes/(1<<20)) }
