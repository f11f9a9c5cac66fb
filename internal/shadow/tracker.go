package shadow

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
)

const (
	// maxFields bounds the fields that a loop remembers: about 2 MiB.
	maxFields = 20_000
	// maxSubjects bounds the subjects whose differences are kept for readers.
	maxSubjects = 2_000
	// maxVerdicts is how many verdicts are kept.
	maxVerdicts = 100
)

// Difference is a difference that counts, with the subject that it was found for.
type Difference struct {
	Subject string
	difference.Difference
}

// Verdict is a Node that the loop and the other program both found silent.
type Verdict struct {
	Node            string
	Trivet, Written time.Time
}

// Lead returns how much earlier the loop was; negative if it was later.
func (v Verdict) Lead() time.Duration { return v.Written.Sub(v.Trivet) }

// Comparison is what a loop has found.
type Comparison struct {
	Loop   string
	Settle time.Duration
	// Compared is how many subjects the last pass compared; Settling have a difference that does
	// not count yet.
	Compared, Settling int
	// Counts has the differences that count, also those that are not kept.
	Counts map[Count]int
	// Since is when the comparison began or last recovered from a doubt. Ended is when the last
	// pass ended; zero before the first one.
	Since, Ended time.Time
	// Undetermined is why nothing can be said; empty if the comparison holds.
	Undetermined string
	// Idle says that the loop runs on another replica.
	Idle   bool
	Passes int64
	// Differences are ordered by subject, object and kind.
	Differences []Difference
	// Verdicts has the last ones, the latest first. Both counts all, Earlier those that the loop
	// found first.
	Verdicts      []Verdict
	Both, Earlier int64
}

// Count identifies a number of differences.
type Count struct {
	Kind      difference.Kind
	Explained bool
}

// Tracker holds what one loop in dry run finds. Its methods are safe for concurrent use and do not
// block.
type Tracker struct {
	loop    string
	settle  time.Duration
	metrics *metrics

	mu       sync.Mutex // guards all below
	settling difference.Settling
	// found has the differences that count, by subject; counts has those of all subjects, kept or
	// not.
	found map[string][]difference.Difference
	// explained is how many subjects of found have only differences with a reason.
	explained int
	counts    map[string]map[Count]int
	waiting   map[string]bool
	state     Comparison
}

func newTracker(loop string, settle time.Duration, m *metrics) *Tracker {
	t := &Tracker{loop: loop, settle: settle, metrics: m, settling: difference.Settling{After: settle, Limit: maxFields}}
	t.state = Comparison{Loop: loop, Settle: settle, Undetermined: "the first pass has not ended"}
	t.reset()
	return t
}

// reset needs t.mu, or a Tracker that is not shared.
func (t *Tracker) reset() {
	t.settling.Restart()
	t.explained = 0
	t.found, t.counts, t.waiting = map[string][]difference.Difference{}, map[string]map[Count]int{}, map[string]bool{}
}

// Observe records all differences of a subject; none if it has none.
func (t *Tracker) Observe(now time.Time, subject string, found []difference.Difference) {
	t.mu.Lock()
	defer t.mu.Unlock()
	counted, waiting := t.settling.Observe(now, subject, found)
	before := t.counts[subject]
	t.forget(subject)
	if waiting {
		t.waiting[subject] = true
	}
	if len(counted) == 0 {
		return
	}
	counts := map[Count]int{}
	for i := range counted {
		counts[Count{Kind: counted[i].Kind, Explained: counted[i].Reason != ""}]++
	}
	for count, n := range counts {
		t.metrics.began(t.loop, count, max(n-before[count], 0))
	}
	t.counts[subject] = counts
	t.keep(subject, counted)
}

// keep keeps the differences of a subject for readers. If too many are kept, a subject with a
// difference without a reason replaces one that has none.
func (t *Tracker) keep(subject string, counted []difference.Difference) {
	explained := !unexplained(counted)
	if len(t.found) >= maxSubjects {
		if explained || t.explained == 0 {
			return
		}
		for other, kept := range t.found {
			if !unexplained(kept) {
				delete(t.found, other)
				t.explained--
				break
			}
		}
	}
	t.found[subject] = counted
	if explained {
		t.explained++
	}
}

// unexplained returns whether a difference has no reason and is not of packing.
func unexplained(found []difference.Difference) bool {
	return slices.ContainsFunc(found, func(d difference.Difference) bool { return weight(Difference{Difference: d}) == 0 })
}

func (t *Tracker) forget(subject string) {
	if found, kept := t.found[subject]; kept && !unexplained(found) {
		t.explained--
	}
	delete(t.found, subject)
	delete(t.counts, subject)
	delete(t.waiting, subject)
}

// Passed records the end of a pass over all subjects, of which some could not be read. It forgets
// those that are not current any more: they are deleted, or another replica compares them.
func (t *Tracker) Passed(now time.Time, compared, unread int, current func(subject string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settling.Retain(current)
	for _, subjects := range []map[string]bool{keys(t.found), keys(t.counts), t.waiting} {
		for subject := range subjects {
			if !current(subject) {
				t.forget(subject)
			}
		}
	}
	if t.state.Since.IsZero() {
		t.state.Since = now
	}
	t.state.Compared, t.state.Settling, t.state.Ended, t.state.Undetermined, t.state.Idle = compared, len(t.waiting), now, "", false
	t.state.Passes++
	if unread > 0 {
		t.state.Undetermined = fmt.Sprintf("%d objects could not be read", unread)
	}
	if dropped := t.settling.Dropped(); dropped > 0 {
		t.state.Undetermined = fmt.Sprintf("%d objects have more differences than are remembered", dropped)
	}
	t.state.Counts = t.total()
	t.metrics.show(&t.state)
}

func keys[T any](of map[string]T) map[string]bool {
	set := make(map[string]bool, len(of))
	for key := range of {
		set[key] = true
	}
	return set
}

func (t *Tracker) total() map[Count]int {
	total := map[Count]int{}
	for _, counts := range t.counts {
		for count, n := range counts {
			total[count] += n
		}
	}
	return total
}

// Doubt records that nothing can be said for now. All differences settle anew: what was compared
// may have been out of date.
func (t *Tracker) Doubt(now time.Time, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset()
	t.state.Undetermined, t.state.Ended, t.state.Since, t.state.Idle = why, now, time.Time{}, false
	t.state.Compared, t.state.Settling, t.state.Counts = 0, 0, nil
	t.metrics.show(&t.state)
}

// Idle records that the loop runs on another replica. It lasts until the next pass or doubt.
func (t *Tracker) Idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset()
	t.state.Undetermined, t.state.Ended, t.state.Since, t.state.Idle = "", time.Time{}, time.Time{}, true
	t.state.Compared, t.state.Settling, t.state.Counts = 0, 0, nil
	t.metrics.show(&t.state)
}

// Verdict records a Node that both found silent.
func (t *Tracker) Verdict(v Verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Both++
	first := "upstream"
	if v.Lead() > 0 {
		t.state.Earlier++
		first = "trivet"
	}
	t.state.Verdicts = append([]Verdict{v}, t.state.Verdicts[:min(len(t.state.Verdicts), maxVerdicts-1)]...)
	t.metrics.verdict(t.loop, first, v.Lead())
}

// Comparison returns what was found, with at most limit differences. Those without a known reason
// come first.
func (t *Tracker) Comparison(limit int) Comparison {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.state
	state.Counts = maps.Clone(state.Counts)
	state.Verdicts = slices.Clone(state.Verdicts)
	for subject, found := range t.found {
		for i := range found {
			state.Differences = append(state.Differences, Difference{Subject: subject, Difference: found[i]})
		}
	}
	slices.SortFunc(state.Differences, compare)
	if len(state.Differences) > limit {
		slices.SortStableFunc(state.Differences, func(a, b Difference) int { return cmp.Compare(weight(a), weight(b)) })
		state.Differences = state.Differences[:limit]
		slices.SortFunc(state.Differences, compare)
	}
	return state
}

// weight orders differences by how much a reader needs them.
func weight(d Difference) int {
	switch {
	case d.Kind == difference.Packing:
		return 2
	case d.Reason != "":
		return 1
	}
	return 0
}

func compare(a, b Difference) int {
	return cmp.Or(
		cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Namespace, b.Object.Namespace),
		cmp.Compare(a.Object.Name, b.Object.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Reason, b.Reason),
	)
}
