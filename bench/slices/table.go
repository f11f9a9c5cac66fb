package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// row is one figure of each contender. Lower is better.
type row struct {
	what string
	// values are nil if not measured.
	values [contenders]*float64
	show   func(float64) string
	// most is the largest allowed value of slicesvc, and target describes it; nil for no target.
	most   *float64
	target string
	// note replaces the figures.
	note string
}

// none is shown for a figure that does not exist.
const none = "–"

// enough is the share of the requested flip rate below which a measurement is invalid.
const enough = 0.9

func targetsMet(rows []row) bool { return !slices.ContainsFunc(rows, row.missed) }

func (r row) missed() bool {
	return r.note != "" || r.most != nil && (r.values[ours] == nil || *r.values[ours] > *r.most)
}

func failed(w world, err error) row {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return row{what: w.name, note: "failed: " + line}
}

func printTable(out io.Writer, rows []row) {
	fmt.Fprintln(out, "| what | must reach | floor | upstream | slicesvc | ÷ floor | ÷ upstream | |\n|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		target := r.target
		if target == "" {
			target = none
		}
		if r.note != "" {
			fmt.Fprintf(out, "| %s | %s | | | %s | | | **missed** |\n", r.what, target, r.note)
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.what, target,
			r.text(floor), r.text(upstream), r.text(ours), r.ratio(floor), r.ratio(upstream), r.verdict())
	}
}

func (r row) text(c contender) string {
	if r.values[c] == nil {
		return none
	}
	return r.show(*r.values[c])
}

func (r row) ratio(to contender) string {
	if r.values[ours] == nil || r.values[to] == nil || *r.values[to] == 0 {
		return none
	}
	return fmt.Sprintf("%.2f", *r.values[ours] / *r.values[to])
}

// verdict describes whether the target is met and whether upstream is better.
func (r row) verdict() string {
	var words []string
	switch {
	case r.missed():
		words = append(words, "**missed**")
	case r.most != nil:
		words = append(words, "met")
	}
	if r.values[ours] != nil && r.values[upstream] != nil && *r.values[upstream] < *r.values[ours] {
		words = append(words, "**upstream ahead**")
	}
	return strings.Join(words, ", ")
}

// of returns the same figure of each contender that has it.
func of[T any](results [contenders]*T, figure func(*T) float64) (values [contenders]*float64) {
	for c, result := range results {
		if result != nil {
			values[c] = new(float64)
			*values[c] = figure(result)
		}
	}
	return values
}

// within sets the target to a share of another contender's value. Without that value, the target is
// missed.
func (r row) within(share float64, c contender) row {
	r.target = fmt.Sprintf("≤ %g × %s", share, [contenders]string{floor: "floor", upstream: "upstream"}[c])
	r.most = new(float64)
	if r.values[c] != nil {
		*r.most = share * *r.values[c]
	}
	return r
}

// rows returns the table's rows for a world. It omits parts without measurements, which the error
// of the world reports.
func (m results) rows(w world) []row {
	return slices.DeleteFunc(slices.Concat(m.coldRows(w), m.flipRows(w), m.upheavalRows(w)), func(r row) bool {
		return r.note == "" && r.values == [contenders]*float64{}
	})
}

func (m results) coldRows(w world) []row {
	what := w.name + ", cold start: "
	wall := row{what: what + "until slices are exact", show: formatSeconds, values: of(m.cold, func(c *cold) float64 { return c.wall.Seconds() })}
	if w.coldTarget > 0 {
		wall = wall.within(w.coldTarget, upstream)
	}
	return []row{
		wall,
		{what: what + "CPU", show: formatSeconds, values: of(m.cold, func(c *cold) float64 { return c.cpu.Seconds() })},
		{what: what + "writes", show: whole, values: of(m.cold, func(c *cold) float64 { return float64(c.writes) })},
		row{what: what + "memory", show: mebibytes, values: of(m.cold, func(c *cold) float64 { return float64(c.resident) })}.within(0.5, upstream),
	}
}

func (m results) flipRows(w world) []row {
	what := fmt.Sprintf("%s, %d flips at %d/s: ", w.name, w.flips.Count, w.flips.Rate)
	latency := func(q float64) [contenders]*float64 {
		return of(m.flips, func(f *flipping) float64 { return f.latencies.At(q).Seconds() })
	}
	rows := []row{
		row{what: what + "CPU", show: formatSeconds, values: of(m.flips, func(f *flipping) float64 { return f.cpu.Seconds() })}.within(1.2, floor),
		row{what: what + "latency p50", show: formatSeconds, values: latency(0.5)}.within(1, upstream),
		row{what: what + "latency p99", show: formatSeconds, values: latency(0.99)}.within(0.25, upstream),
		{what: what + "writes", show: whole, values: of(m.flips, func(f *flipping) float64 { return float64(f.writes) })},
		row{what: what + "memory", show: mebibytes, values: of(m.flips, func(f *flipping) float64 { return float64(f.resident) })}.within(0.5, upstream),
	}
	for c, f := range m.flips {
		if f != nil && f.rate < enough*float64(w.flips.Rate) {
			rows = append(rows, row{what: what + contender(c).String(), note: fmt.Sprintf("only %.0f/s were achieved: the machine is too busy", f.rate)})
		}
	}
	return rows
}

func (m results) upheavalRows(w world) []row {
	if w.massChange == nil {
		return nil
	}
	what := fmt.Sprintf("%s, %s: ", w.name, w.massChange.what)
	left := row{what: what + "slices left", show: whole, values: of(m.massChange, func(o *outcome) float64 { return float64(o.slices) })}
	left.most = new(float64)
	if w.massChange.slices == 0 {
		left = left.within(1, upstream)
	} else if o := m.massChange[ours]; o != nil {
		*left.most = w.massChange.slices * float64(o.ideal)
		left.target = fmt.Sprintf("≤ %g × ideal, which is %d, within %v", w.massChange.slices, o.ideal, quietFor)
	}
	return []row{
		row{what: what + "writes", show: whole, values: of(m.massChange, func(o *outcome) float64 { return float64(o.writes) })}.
			within(w.massChange.writes, upstream),
		{what: what + "bytes for each watch", show: mebibytes, values: of(m.massChange, func(o *outcome) float64 { return float64(o.bytes) })},
		left,
		{what: what + "CPU", show: formatSeconds, values: of(m.massChange, func(o *outcome) float64 { return o.cpu.Seconds() })},
		row{what: what + "memory", show: mebibytes, values: of(m.massChange, func(o *outcome) float64 { return float64(o.resident) })}.within(0.5, upstream),
	}
}

// formatSeconds formats seconds with about three digits.
func formatSeconds(seconds float64) string {
	if seconds >= 1 {
		return fmt.Sprintf("%.2f s", seconds)
	}
	return fmt.Sprintf("%.1f ms", seconds*1000)
}

func whole(n float64) string { return fmt.Sprintf("%.0f", n) }

func mebibytes(bytes float64) string { return fmt.Sprintf("%.0f MiB", bytes/(1<<20)) }
