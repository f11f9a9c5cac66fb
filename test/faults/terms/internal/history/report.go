package history

import (
	"errors"
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// Report is the result of the analysis of a history.
type Report struct {
	// Applied, Refused and Unanswered count writes. LateApplied counts the unanswered ones that
	// took effect.
	Applied, Refused, Unanswered, LateApplied int
	// Reads counts answered reads, Checks counts passed checks, and Terms counts terms with an
	// activity.
	Reads, Checks, Terms int
	// NotLinearizable to Gaps have one sentence for each violation.
	NotLinearizable, StaleWrites, Contradictions, Overlaps, Gaps []string
	// Stalls counts the times in which the machine did not run the test.
	Stalls int
	// ExcusedOverlaps counts overlaps after a forced revocation.
	ExcusedOverlaps int
	// Bound is that of the history, LongestGap the longest time without a holder, and
	// LongestWithoutFault the longest part of a gap without a fault.
	Bound, LongestWithoutFault, LongestGap time.Duration
	// FewestApplied is the lowest number of applied writes to one shard.
	FewestApplied int
}

// Analyze analyzes a history. It does not change it.
func Analyze(h History) Report {
	v := Report{Bound: h.Bound()}
	for _, f := range h.Faults {
		if f.Kind == Stall {
			v.Stalls++
		}
	}
	for shard := range h.Shards {
		v.count(h, shard)
		switch linearizable(h.operations(shard)) {
		case porcupine.Illegal:
			v.NotLinearizable = append(v.NotLinearizable, fmt.Sprintf("shard %d: its register is not linearizable", shard))
		case porcupine.Unknown:
			v.NotLinearizable = append(v.NotLinearizable, fmt.Sprintf("shard %d: no linearization found within %v", shard, checkTimeout))
		case porcupine.Ok:
		}
		v.StaleWrites = append(v.StaleWrites, h.stale(shard)...)
		v.Contradictions = append(v.Contradictions, h.contradictions(shard)...)
		overlaps, excused := h.overlaps(shard)
		v.Overlaps, v.ExcusedOverlaps = append(v.Overlaps, overlaps...), v.ExcusedOverlaps+excused
		v.measureGaps(h, shard)
	}
	return v
}

// count adds up the events of a shard.
func (v *Report) count(h History, shard int) {
	applied, took := 0, h.tookEffect(shard)
	for _, op := range h.operations(shard) {
		switch {
		case op.Outcome == Applied:
			applied++
		case op.Outcome == Refused:
			v.Refused++
		case op.Outcome == Answered:
			v.Reads++
		case op.Kind == Wrote:
			v.Unanswered++
			if took[op.Value.ID] {
				v.LateApplied++
			}
		}
	}
	if v.Applied += applied; shard == 0 || applied < v.FewestApplied {
		v.FewestApplied = applied
	}
	v.Terms += len(h.activities(shard))
	for _, log := range h.Logs {
		for _, event := range log.Events {
			if event.Kind == Passed && event.Shard == shard {
				v.Checks++
			}
		}
	}
}

// measureGaps measures the gaps of a shard.
func (v *Report) measureGaps(h History, shard int) {
	for _, g := range h.gaps(shard) {
		longestWithoutFault := h.longestWithoutFault(g)
		v.LongestGap = max(v.LongestGap, time.Duration(g.end-g.start))
		v.LongestWithoutFault = max(v.LongestWithoutFault, longestWithoutFault)
		if longestWithoutFault > v.Bound {
			v.Gaps = append(v.Gaps, fmt.Sprintf("shard %d: no replica acted for %v, %v of that without a fault", shard,
				time.Duration(g.end-g.start), longestWithoutFault))
		}
	}
}

// Minimum is what a meaningful history contains at least.
type Minimum struct{ Applied, Reads, Terms int }

// Err returns all violations, and an error if the history is below the minimum.
func (v Report) Err(minimum Minimum) error {
	var problems []error
	for _, violations := range [][]string{v.NotLinearizable, v.StaleWrites, v.Contradictions, v.Overlaps, v.Gaps} {
		for _, violation := range violations {
			problems = append(problems, errors.New(violation))
		}
	}
	for _, count := range []struct {
		what         string
		got, minimum int
	}{
		{what: "writes applied to the shard with the fewest", got: v.FewestApplied, minimum: minimum.Applied},
		{what: "reads", got: v.Reads, minimum: minimum.Reads},
		{what: "terms", got: v.Terms, minimum: minimum.Terms},
	} {
		if count.got < count.minimum {
			problems = append(problems, fmt.Errorf("too little happened to prove anything: %d %s, want %d", count.got, count.what, count.minimum))
		}
	}
	return errors.Join(problems...)
}

// String returns the figures in one line.
func (v Report) String() string {
	return fmt.Sprintf("%d writes applied (%d at least to each shard), %d refused, %d unanswered (%d of them took effect), %d reads, %d checks, %d terms; "+
		"not linearizable %d, stale writes %d, contradictions %d, two holders %d (and %d after a forced revocation), "+
		"no holder beyond %v: %d (longest %v, of that without a fault %v; %d stalls)",
		v.Applied, v.FewestApplied, v.Refused, v.Unanswered, v.LateApplied, v.Reads, v.Checks, v.Terms,
		len(v.NotLinearizable), len(v.StaleWrites), len(v.Contradictions), len(v.Overlaps), v.ExcusedOverlaps,
		v.Bound, len(v.Gaps), v.LongestGap.Round(time.Millisecond), v.LongestWithoutFault.Round(time.Millisecond), v.Stalls)
}

// Plus returns the sum of two reports.
func (v Report) Plus(other Report) Report {
	if v.Bound == 0 {
		return other
	}
	v.Applied += other.Applied
	v.Refused += other.Refused
	v.Unanswered += other.Unanswered
	v.LateApplied += other.LateApplied
	v.Reads += other.Reads
	v.Checks += other.Checks
	v.Terms += other.Terms
	v.NotLinearizable = append(v.NotLinearizable, other.NotLinearizable...)
	v.StaleWrites = append(v.StaleWrites, other.StaleWrites...)
	v.Contradictions = append(v.Contradictions, other.Contradictions...)
	v.Overlaps = append(v.Overlaps, other.Overlaps...)
	v.Gaps = append(v.Gaps, other.Gaps...)
	v.ExcusedOverlaps += other.ExcusedOverlaps
	v.Stalls += other.Stalls
	v.Bound = max(v.Bound, other.Bound)
	v.LongestWithoutFault = max(v.LongestWithoutFault, other.LongestWithoutFault)
	v.LongestGap = max(v.LongestGap, other.LongestGap)
	v.FewestApplied = min(v.FewestApplied, other.FewestApplied)
	return v
}
