package main

import (
	"fmt"
	"io"
	"slices"
)

// Targets.
const (
	mostMiB        = 25.0
	mostMillicores = 1.0
)

// row is one figure; target 0 means that it has none.
type row struct {
	what          string
	value, target float64
	unit          string
}

func (r row) missed() bool { return r.target > 0 && r.value > r.target }

func met(rows []row) bool { return !slices.ContainsFunc(rows, row.missed) }

func printTable(out io.Writer, rows []row) {
	fmt.Fprint(out, "| what | measured | target |\n|---|---|---|\n")
	for _, r := range rows {
		target, missed := "", ""
		if r.target > 0 {
			target = fmt.Sprintf("≤ %g %s", r.target, r.unit)
		}
		if r.missed() {
			missed = "**missed:** "
		}
		fmt.Fprintf(out, "| %s | %s%.2f %s | %s |\n", r.what, missed, r.value, r.unit, target)
	}
}
