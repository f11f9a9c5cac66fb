package history

import (
	"errors"
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is what a history shows.
type Report struct {
	// Applied, Refused and Unanswered count writes, and Late those of the unanswered that took effect.
	Applied, Refused, Unanswered, LateApplied int
	// Reads counts answered reads, Checks passed ones, and Terms those under which somebody acted.
	Reads, Checks, Terms int
	// Violations of each kind, one sentence for each.
	NotLinearizable, StaleWrites, Contradictions, Overlaps, Gaps []string
	// Stalls counts the times for which the machine stood still.
	Stalls int
	// Excused counts overlaps after a lease was revoked by force.
	ExcusedOverlaps int
	// Bound is how long a shard may be without a holder for one reason, Undisturbed how long one was at most, and Longest
	// the same with all faults included.
	Bound, LongestWithoutFault, LongestGap time.Duration
	// Quietest is the number of writes that were applied to the shard that had fewest.
	FewestApplied int
}

// Judge judges a history. It does not change it.
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

// count adds up what was done to a shard.
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

// weigh measures the gaps of a shard.
func (v *Report) measureGaps(h History, shard int) {
	for _, g := range h.gaps(shard) {
		longestWithoutFault := h.longestWithoutFault(g)
		v.LongestGap = max(v.LongestGap, time.Duration(g.end-g.start))
		v.LongestWithoutFault = max(v.LongestWithoutFault, longestWithoutFault)
		if longestWithoutFault > v.Bound {
			v.Gaps = append(v.Gaps, fmt.Sprintf("shard %d: nobody acted for %v, %v of that without any fault", shard,
				time.Duration(g.end-g.start), longestWithoutFault))
		}
	}
}

// Floor is what must have happened at least: a check that saw nothing proves nothing.
type Minimum struct{ Applied, Reads, Terms int }

// Err returns all that is wrong with a history, nil if nothing is.
func (v Report) Err(floor Minimum) error {
	var problems []error
	for _, violations := range [][]string{v.NotLinearizable, v.StaleWrites, v.Contradictions, v.Overlaps, v.Gaps} {
		for _, violation := range violations {
			problems = append(problems, errors.New(violation))
		}
	}
	for _, sight := range []struct {
		what        string
		seen, floor int
	}{
		{what: "writes applied to the shard that had fewest", seen: v.FewestApplied, floor: floor.Applied},
		{what: "reads", seen: v.Reads, floor: floor.Reads},
		{what: "terms", seen: v.Terms, floor: floor.Terms},
	} {
		if sight.seen < sight.floor {
			problems = append(problems, fmt.Errorf("too little happened to prove anything: %d %s, want %d", sight.seen, sight.what, sight.floor))
		}
	}
	return errors.Join(problems...)
}

// String is the verdict's figures in one line.
func (v Report) String() string {
	return fmt.Sprintf("%d writes applied (%d at least to each shard), %d refused, %d unanswered (%d of them took effect), %d reads, %d checks, %d terms; "+
		"not linearizable %d, stale writes %d, contradictions %d, two holders %d (and %d after a forced revocation), "+
		"no holder beyond %v: %d (longest %v, of that undisturbed %v; %d stalls)",
		v.Applied, v.FewestApplied, v.Refused, v.Unanswered, v.LateApplied, v.Reads, v.Checks, v.Terms,
		len(v.NotLinearizable), len(v.StaleWrites), len(v.Contradictions), len(v.Overlaps), v.ExcusedOverlaps,
		v.Bound, len(v.Gaps), v.LongestGap.Round(time.Millisecond), v.LongestWithoutFault.Round(time.Millisecond), v.Stalls)
}

// Plus is what two histories show together.
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
