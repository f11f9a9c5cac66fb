package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// row is one figure of each contender, for each round. Lower is better.
type row struct {
	what string
	// rounds have the values of the contenders. A round without both is left out.
	rounds [][contenders]float64
	show   func(float64) string
	// share is the largest allowed ratio to upstream's value; nil for no target.
	share *float64
	// most is the largest allowed value in any round; nil for no target.
	most *float64
	// note replaces the figures.
	note string
}

// none is shown for a figure that does not exist.
const none = "–"

// enough is the share of the requested flip rate below which a measurement is invalid.
const enough = 0.9

func targetsMet(rows []row) bool { return !slices.ContainsFunc(rows, row.missed) }

func (r row) missed() bool {
	switch {
	case r.note != "":
		return true
	case r.share != nil:
		ratios := r.ratios()
		return len(ratios) == 0 || median(ratios) > *r.share
	case r.most != nil:
		return len(r.rounds) == 0 || slices.ContainsFunc(r.rounds, func(round [contenders]float64) bool { return round[ours] > *r.most })
	}
	return false
}

// ratios returns slicesvc's share of upstream's value in each round.
func (r row) ratios() []float64 {
	var all []float64
	for _, round := range r.rounds {
		if round[upstream] > 0 {
			all = append(all, round[ours]/round[upstream])
		}
	}
	return all
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func failed(w world, err error) row {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return row{what: w.name, note: "failed: " + line}
}

func printTable(out io.Writer, rows []row) {
	fmt.Fprintln(out, "| what | target | upstream | slicesvc | ÷ upstream | in each round | |\n|---|---|---|---|---|---|---|")
	for _, r := range rows {
		if r.note != "" {
			fmt.Fprintf(out, "| %s | %s | | %s | | | **missed** |\n", r.what, r.target(), r.note)
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s | %s |\n", r.what, r.target(), r.text(upstream), r.text(ours), r.ratio(), r.eachRatio(), r.verdict())
	}
}

func (r row) target() string {
	switch {
	case r.share != nil:
		return fmt.Sprintf("≤ %g × upstream", *r.share)
	case r.most != nil:
		return r.show(*r.most)
	}
	return none
}

// text returns the median of a contender's values.
func (r row) text(c contender) string {
	if len(r.rounds) == 0 {
		return none
	}
	var values []float64
	for _, round := range r.rounds {
		values = append(values, round[c])
	}
	return r.show(median(values))
}

func (r row) ratio() string {
	ratios := r.ratios()
	if len(ratios) == 0 {
		return none
	}
	return fmt.Sprintf("%.2f", median(ratios))
}

func (r row) eachRatio() string {
	ratios := r.ratios()
	if len(ratios) < 2 {
		return none
	}
	var texts []string
	for _, ratio := range ratios {
		texts = append(texts, fmt.Sprintf("%.2f", ratio))
	}
	return strings.Join(texts, ", ")
}

// verdict describes whether the target is met and whether upstream is better.
func (r row) verdict() string {
	var words []string
	switch {
	case r.missed():
		words = append(words, "**missed**")
	case r.share != nil || r.most != nil:
		words = append(words, "met")
	}
	if ratios := r.ratios(); len(ratios) > 0 && median(ratios) > 1 {
		words = append(words, "**upstream ahead**")
	}
	return strings.Join(words, ", ")
}

// within sets the target to a share of upstream's value; 0 sets none.
func (r row) within(share float64) row {
	if share > 0 {
		r.share = &share
	}
	return r
}

// atMost sets the target to a value.
func (r row) atMost(value float64) row {
	r.most = &value
	return r
}

// both returns the figure of the rounds in which each contender has it.
func both[T any](rounds [][contenders]*T, figure func(*T) float64) [][contenders]float64 {
	var all [][contenders]float64
	for _, round := range rounds {
		if round[upstream] != nil && round[ours] != nil {
			all = append(all, [contenders]float64{figure(round[upstream]), figure(round[ours])})
		}
	}
	return all
}

// parts returns one part of the turns of all rounds.
func parts[T any](rounds [][contenders]turn, part func(turn) *T) [][contenders]*T {
	var all [][contenders]*T
	for _, round := range rounds {
		all = append(all, [contenders]*T{part(round[upstream]), part(round[ours])})
	}
	return all
}

// rows returns the table's rows for a world. It omits parts without measurements, which the error
// of the world reports.
func (m results) rows(w world) []row {
	adoptions := parts(m.rounds, func(t turn) *start { return t.adoption })
	restarts := parts(m.rounds, func(t turn) *start { return t.restart })
	rows := slices.Concat(
		startRows(w.name+", start without slices", [][contenders]*start{m.empty}, 0),
		[]row{
			row{what: w.name + ", start beside right slices: writes", show: whole, rounds: both(adoptions, written)}.atMost(0),
			{what: fmt.Sprintf("%s, start beside right slices: CPU in %v", w.name, w.rest), show: formatSeconds, rounds: both(adoptions, spent)},
			{what: w.name + ", start beside right slices: peak memory", show: mebibytes, rounds: both(adoptions, peak)},
		},
		m.flipRows(w),
		startRows(fmt.Sprintf("%s, restart with %d outdated", w.name, w.unseen), restarts, 1),
	)
	return slices.DeleteFunc(rows, func(r row) bool { return r.note == "" && len(r.rounds) == 0 })
}

func written(s *start) float64 { return float64(s.writes) }

func spent(s *start) float64 { return s.cpu.Seconds() }

func peak(s *start) float64 { return float64(s.peak) }

// startRows are the figures of a start until the slices are exact. writes is the allowed share of
// upstream's writes; 0 for no target.
func startRows(what string, starts [][contenders]*start, writes float64) []row {
	return []row{
		{what: what + ": until slices are exact", show: formatSeconds, rounds: both(starts, func(s *start) float64 { return s.wall.Seconds() })},
		{what: what + ": CPU", show: formatSeconds, rounds: both(starts, spent)},
		row{what: what + ": writes", show: whole, rounds: both(starts, written)}.within(writes),
		{what: what + ": peak memory", show: mebibytes, rounds: both(starts, peak)},
	}
}

func (m results) flipRows(w world) []row {
	flips := parts(m.rounds, func(t turn) *flipping { return t.flips })
	what := fmt.Sprintf("%s, %d flips at %d/s: ", w.name, w.flips.Count, w.flips.Rate)
	latency := func(q float64) [][contenders]float64 {
		return both(flips, func(f *flipping) float64 { return f.latencies.At(q).Seconds() })
	}
	rows := []row{
		row{what: what + "CPU", show: formatSeconds, rounds: both(flips, func(f *flipping) float64 { return f.cpu.Seconds() })}.within(w.cpu),
		{what: what + "latency p50", show: formatSeconds, rounds: latency(0.5)},
		row{what: what + "latency p99", show: formatSeconds, rounds: latency(0.99)}.within(w.p99),
		row{what: what + "writes", show: whole, rounds: both(flips, func(f *flipping) float64 { return float64(f.writes) })}.within(w.writes),
		{what: what + "memory", show: mebibytes, rounds: both(flips, func(f *flipping) float64 { return float64(f.resident) })},
	}
	for _, round := range flips {
		for c, f := range round {
			if f != nil && f.rate < enough*float64(w.flips.Rate) {
				rows = append(rows, row{what: what + contender(c).String(), note: fmt.Sprintf("only %.0f/s were achieved: the machine is too busy", f.rate)})
			}
		}
	}
	return rows
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
