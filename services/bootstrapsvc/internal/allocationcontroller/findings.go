package allocationcontroller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// maxKept bounds how many standing findings the journal has. Of more than that, first sight is forgotten with the term.
const maxKept = 5000

// book is the findings with their history. It does no I/O and knows no clock.
type book struct {
	limit    int
	standing map[string]*Finding
	// ended are ordered by when they ended; the oldest are dropped beyond the limit.
	ended []Finding
	// recalled are those that stood when an earlier term ended, and have not been seen by this one yet.
	recalled map[string]repairstore.Finding
	// kept are the standing findings that the journal has, dirty those that it must be told of, forget what it may drop.
	kept, dirty map[string]struct{}
	forget      []string
	// told are the standing findings that were told as open, here or by an earlier term.
	told map[string]struct{}
	// mended has the repair that carried out a step of a standing finding.
	mended map[string]string
	// pending are the standing findings that ripen.
	pending map[string]struct{}
	judged  bool
	changes uint64
	// changed tells that something is new since the last refresh.
	changed bool
}

func newBook(limit int) *book {
	return &book{
		limit: limit, standing: map[string]*Finding{}, recalled: map[string]repairstore.Finding{}, kept: map[string]struct{}{},
		dirty: map[string]struct{}{}, mended: map[string]string{}, pending: map[string]struct{}{},
		told: map[string]struct{}{},
	}
}

// recall takes what an earlier term left.
func (b *book) recall(findings []repairstore.Finding, repairs []repairstore.Repair) {
	for _, finding := range findings {
		if finding.End == repairstore.NotEnded {
			b.recalled[finding.Name] = finding
			b.kept[finding.Name] = struct{}{}
			continue
		}
		b.ended = append(b.ended, Finding{Finding: finding})
	}
	slices.SortFunc(b.ended, func(x, y Finding) int { return cmp.Or(x.Ended.Compare(y.Ended), cmp.Compare(x.Name, y.Name)) })
	b.trim()
	for _, repair := range repairs {
		for i, outcome := range repair.Results {
			if found, ok := b.recalled[repair.Steps[i].Finding]; ok && outcome.State == repairstore.StepDone && outcome.Time.After(found.FirstSeen) {
				b.mended[found.Name] = repair.ID
			}
		}
	}
}

// take takes what an audit found and returns the findings that are open now and were not.
func (b *book) take(delta allocation.Delta, now time.Time) []allocation.Finding {
	now = now.UTC() // as the journal has it, without a reading of the monotonic clock
	var opened []allocation.Finding
	for _, finding := range delta.Changed {
		if b.put(finding, now) {
			opened = append(opened, finding)
		}
	}
	for _, finding := range delta.Ended {
		if stood, ok := b.standing[finding.Name]; ok {
			b.end(stood.Finding, now)
		}
	}
	if !b.judged {
		b.judged = true
		for _, name := range slices.Sorted(maps.Keys(b.recalled)) {
			b.end(b.recalled[name], now)
		}
	}
	return opened
}

// put takes a finding as it is now, and tells whether it is open for the first time. One that stood before is known to all.
func (b *book) put(finding allocation.Finding, now time.Time) (opened bool) {
	b.changed = true
	known, ok := b.standing[finding.Name]
	recalled, before := b.recalled[finding.Name]
	switch {
	case ok:
	case before:
		delete(b.recalled, finding.Name)
		known = &Finding{Finding: recalled}
	default:
		known = &Finding{Finding: repairstore.Finding{FirstSeen: now}}
	}
	if before {
		b.told[finding.Name] = struct{}{}
	}
	if _, told := b.told[finding.Name]; !told && finding.State == allocation.StateOpen {
		b.told[finding.Name] = struct{}{}
		opened = true
	}
	b.standing[finding.Name] = known
	known.Finding.Finding, known.LastSeen, known.Change = finding, now, b.change()
	delete(b.pending, finding.Name)
	if finding.State == allocation.StatePending {
		b.pending[finding.Name] = struct{}{}
	}
	if _, isKept := b.kept[finding.Name]; isKept || finding.State == allocation.StateOpen && len(b.kept) < maxKept {
		b.kept[finding.Name], b.dirty[finding.Name] = struct{}{}, struct{}{}
	}
	return opened
}

// end takes a finding that is no more. One that was never sure leaves nothing behind.
func (b *book) end(stood repairstore.Finding, now time.Time) {
	b.changed = true
	name := stood.Name
	_, isKept := b.kept[name]
	for _, of := range []map[string]struct{}{b.kept, b.pending, b.dirty, b.told} {
		delete(of, name)
	}
	delete(b.standing, name)
	delete(b.recalled, name)
	repair, mended := b.mended[name]
	delete(b.mended, name)
	if !isKept && stood.State != allocation.StateOpen && !mended {
		return
	}
	stood.Ended, stood.End, stood.RepairedBy = now, repairstore.EndGone, repair
	if mended {
		stood.End = repairstore.EndRepaired
	}
	stood.Steps = nil
	b.ended = slices.DeleteFunc(b.ended, func(f Finding) bool { return f.Name == name })
	b.ended = append(b.ended, Finding{Finding: stood, Change: b.change()})
	b.dirty[name] = struct{}{}
	b.trim()
}

// trim drops the oldest of what has ended.
func (b *book) trim() {
	for len(b.ended) > b.limit {
		name := b.ended[0].Name
		b.ended = b.ended[1:]
		delete(b.dirty, name)
		if _, stands := b.kept[name]; !stands {
			b.forget = append(b.forget, name)
		}
	}
}

func (b *book) change() uint64 {
	b.changes++
	return b.changes
}

// refresh takes how often findings that ripen were sighted, and tells whether anything is new since the last refresh.
func (b *book) refresh(now func(name string) (allocation.Finding, bool)) bool {
	for name := range b.pending {
		known := b.standing[name]
		if finding, ok := now(name); ok && finding.Observations != known.Observations {
			known.Finding.Finding, known.Change, b.changed = finding, b.change(), true
		}
	}
	changed := b.changed
	b.changed = false
	return changed
}

// unkept returns what the journal must be told of, and what it may forget.
func (b *book) unkept() ([]repairstore.Finding, []string) {
	var findings []repairstore.Finding
	for _, name := range slices.Sorted(maps.Keys(b.dirty)) {
		if stands, ok := b.standing[name]; ok {
			findings = append(findings, stands.Finding)
			continue
		}
		if i := slices.IndexFunc(b.ended, func(f Finding) bool { return f.Name == name }); i >= 0 {
			findings = append(findings, b.ended[i].Finding)
		}
	}
	return findings, b.forget
}

// keptAll takes note that the journal has what unkept returned.
func (b *book) keptAll() {
	clear(b.dirty)
	b.forget = nil
}

// mend takes note of a repair that carried out a step of a finding.
func (b *book) mend(name, repair string) {
	if _, stands := b.standing[name]; stands {
		b.mended[name] = repair
	}
}

// safe are the findings that may be mended alone, ordered by name.
func (b *book) safe() []allocation.Finding {
	var found []allocation.Finding
	for _, name := range slices.Sorted(maps.Keys(b.standing)) {
		if finding := b.standing[name].Finding.Finding; isSafe(finding) {
			found = append(found, finding)
		}
	}
	return found
}

func isSafe(finding allocation.Finding) bool {
	return finding.State == allocation.StateOpen && finding.Safe
}

func (b *book) listStanding() []Finding {
	list := make([]Finding, 0, len(b.standing))
	for _, finding := range b.standing {
		list = append(list, *finding)
	}
	slices.SortFunc(list, bySight)
	return list
}

func (b *book) listEnded() []Finding {
	list := slices.Clone(b.ended)
	slices.SortFunc(list, bySight)
	return list
}

func bySight(a, b Finding) int {
	return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Name, b.Name))
}
