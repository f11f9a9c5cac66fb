package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// row is one figure of leasesvc, its target, and the figures of other programs in the same run.
type row struct {
	what, target string
	ours, beside string
	// missed is true if the target is not met. A row without a target cannot miss it.
	missed bool
}

// none is shown for a figure that does not exist.
const none = "–"

func targetsMet(rows []row) bool {
	return !slices.ContainsFunc(rows, func(r row) bool { return r.missed })
}

func printTable(out io.Writer, rows []row) {
	fmt.Fprintln(out, "| what | must reach | leasesvc | beside it | |\n|---|---|---|---|---|")
	for _, r := range rows {
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", r.what, orNone(r.target), orNone(r.ours), orNone(r.beside), r.verdict())
	}
}

func (r row) verdict() string {
	switch {
	case r.missed:
		return "**missed**"
	case r.target == "":
		return ""
	}
	return "met"
}

func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}

// cost is the cost of a number of heartbeats.
type cost struct {
	cpu   time.Duration
	beats int64
	in    time.Duration
	anew  int64 // reopened streams
}

func (c cost) plus(other cost) cost {
	return cost{cpu: c.cpu + other.cpu, beats: c.beats + other.beats, in: c.in + other.in}
}

// each returns the CPU time of one heartbeat in microseconds.
func (c cost) each() float64 { return c.cpu.Seconds() * 1e6 / float64(c.beats) }

func (c cost) perSecond() float64 { return float64(c.beats) / c.in.Seconds() }

func (c cost) String() string {
	text := fmt.Sprintf("%.2f µs (%s/s)", c.each(), thousands(c.perSecond()))
	if c.anew > 0 {
		text += fmt.Sprintf(", %d streams opened anew", c.anew)
	}
	return text
}

// thousands groups the digits of a whole number.
func thousands(n float64) string {
	text := fmt.Sprintf("%.0f", n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// quantile returns the smallest of the sorted values that at least a share q of them does not
// exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	index := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(index, 0), len(sorted)-1)]
}

// formatDuration formats a duration with about three digits.
func formatDuration(d time.Duration) string {
	if d >= time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
