package allocationcontroller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// maxStored bounds how many current findings are stored. Findings beyond it lose FirstSeen at the
// end of the term.
const maxStored = 5000

// findingCache holds the findings with their history. It does no I/O and reads no clock.
type findingCache struct {
	historyLimit int
	current      map[string]*allocation.Finding
	// ended are ordered by Ended. Beyond historyLimit, the oldest are dropped.
	ended []allocation.Finding
	// restored are the findings that were current when an earlier term ended, and that this term
	// has not seen yet.
	restored map[string]allocation.Finding
	// stored are the current findings that the store has. unsaved are those to write, deleted those
	// to delete.
	stored, unsaved set
	deleted         []string
	// reported are the current findings that were reported as open, in this or an earlier term.
	reported set
	// repairedBy has the ID of the repair that applied a step of a current finding.
	repairedBy map[string]string
	// ignores has the marks of current findings. Until the first comparison of the term, it also
	// has those of findings that may have ended.
	ignores map[string]allocation.Ignore
	// unignored are the findings whose stored marks are to be deleted.
	unignored set
	// left are the findings that ended since the last refresh, as they ended.
	left    map[string]allocation.Finding
	pending set
	// compared reports that this term has made a comparison.
	compared   bool
	generation uint64
	// changed reports a difference since the last refresh.
	changed bool
}

// set is a set of names of findings.
type set map[string]struct{}

func (s set) has(name string) bool {
	_, ok := s[name]
	return ok
}

func newFindingCache(historyLimit int) *findingCache {
	return &findingCache{
		historyLimit: historyLimit, current: map[string]*allocation.Finding{}, restored: map[string]allocation.Finding{},
		stored: set{}, unsaved: set{}, reported: set{}, repairedBy: map[string]string{}, pending: set{},
		ignores: map[string]allocation.Ignore{}, unignored: set{}, left: map[string]allocation.Finding{},
	}
}

func (c *findingCache) restore(findings []allocation.Finding, ignores []allocation.Ignore, repairs []repairstore.Repair) {
	for _, ignore := range ignores {
		c.ignores[ignore.Finding] = ignore
	}
	for _, finding := range findings {
		if finding.End == allocation.NotEnded {
			c.restored[finding.Name] = finding
			c.stored[finding.Name] = struct{}{}
			continue
		}
		c.ended = append(c.ended, finding)
	}
	slices.SortFunc(c.ended, func(x, y allocation.Finding) int {
		return cmp.Or(x.Ended.Compare(y.Ended), cmp.Compare(x.Name, y.Name))
	})
	c.trim()
	for _, repair := range repairs {
		for i, result := range repair.Results {
			found, ok := c.restored[repair.Steps[i].Finding]
			if ok && result.State == repairstore.StepDone && result.Time.After(found.FirstSeen) {
				c.repairedBy[found.Name] = repair.ID
			}
		}
	}
}

// update applies the difference that a comparison found, and returns the findings that opened. The
// first comparison of a term ends the restored findings that it did not see.
func (c *findingCache) update(delta allocation.Delta, now time.Time) []allocation.Finding {
	now = now.UTC() // the form in which it is stored, without a monotonic clock reading
	var opened []allocation.Finding
	for _, finding := range delta.Changed {
		if c.put(finding, now) {
			opened = append(opened, finding)
		}
	}
	for _, finding := range delta.Ended {
		if current, ok := c.current[finding.Name]; ok {
			c.end(*current, now)
		}
	}
	if !c.compared {
		c.compared = true
		for _, name := range slices.Sorted(maps.Keys(c.restored)) {
			c.end(c.restored[name], now)
		}
		for name := range c.ignores {
			if _, current := c.current[name]; !current {
				c.dropIgnore(name)
			}
		}
	}
	return opened
}

// put adds or replaces a finding, and reports whether it opened. A restored finding was reported by
// the earlier term.
func (c *findingCache) put(finding allocation.Finding, now time.Time) (opened bool) {
	name := finding.Name
	finding.FirstSeen = now
	if restored, ok := c.restored[name]; ok {
		finding.FirstSeen = restored.FirstSeen
		c.reported[name] = struct{}{}
		delete(c.restored, name)
	}
	if known, ok := c.current[name]; ok {
		finding.FirstSeen = known.FirstSeen
	}
	if !c.reported.has(name) && finding.State == allocation.StateOpen {
		c.reported[name] = struct{}{}
		opened = true
	}
	finding.LastSeen, finding.Generation = now, c.nextGeneration()
	finding.Ignore = c.ignoreOf(name)
	c.current[name] = &finding
	delete(c.pending, name)
	if finding.State == allocation.StatePending {
		c.pending[name] = struct{}{}
	}
	if c.stored.has(name) || finding.State == allocation.StateOpen && len(c.stored) < maxStored {
		c.stored[name], c.unsaved[name] = struct{}{}, struct{}{}
	}
	return opened
}

// end ends a finding, and with it the mark that it is ignored. A finding that was never open leaves
// nothing behind.
func (c *findingCache) end(finding allocation.Finding, now time.Time) {
	name := finding.Name
	repair, repaired := c.repairedBy[name]
	keep := c.stored.has(name) || finding.State == allocation.StateOpen || repaired
	for _, of := range []set{c.stored, c.pending, c.unsaved, c.reported} {
		delete(of, name)
	}
	delete(c.current, name)
	delete(c.restored, name)
	delete(c.repairedBy, name)
	if _, ignored := c.ignores[name]; ignored {
		c.dropIgnore(name)
	}
	finding.Ended, finding.End, finding.RepairedBy = now, allocation.EndResolved, repair
	if repaired {
		finding.End = allocation.EndRepaired
	}
	finding.Steps, finding.Ignore = nil, nil
	finding.Generation = c.nextGeneration()
	c.left[name] = finding
	if !keep {
		return
	}
	c.ended = slices.DeleteFunc(c.ended, func(f allocation.Finding) bool { return f.Name == name })
	c.ended = append(c.ended, finding)
	c.unsaved[name] = struct{}{}
	c.trim()
}

func (c *findingCache) trim() {
	for len(c.ended) > c.historyLimit {
		name := c.ended[0].Name
		c.ended = c.ended[1:]
		delete(c.unsaved, name)
		if !c.stored.has(name) {
			c.deleted = append(c.deleted, name)
		}
	}
}

func (c *findingCache) nextGeneration() uint64 {
	c.changed = true
	c.generation++
	return c.generation
}

// refresh updates the observations of pending findings. It reports whether anything changed since
// the last refresh, and returns the findings that ended since.
func (c *findingCache) refresh(index *allocation.Index) (changed bool, left []allocation.Finding) {
	for name := range c.pending {
		known := c.current[name]
		if finding, ok := index.Finding(name); ok && finding.State == known.State && finding.Observations != known.Observations {
			finding.FirstSeen, finding.LastSeen, finding.Ignore = known.FirstSeen, known.LastSeen, known.Ignore
			finding.Generation = c.nextGeneration()
			c.current[name] = &finding
		}
	}
	changed, left = c.changed, slices.Collect(maps.Values(c.left))
	c.changed = false
	clear(c.left)
	return changed, left
}

func (c *findingCache) toStore() (findings []allocation.Finding, deleted []string) {
	for _, name := range slices.Sorted(maps.Keys(c.unsaved)) {
		if current, ok := c.current[name]; ok {
			findings = append(findings, *current)
			continue
		}
		if i := slices.IndexFunc(c.ended, func(f allocation.Finding) bool { return f.Name == name }); i >= 0 {
			findings = append(findings, c.ended[i])
		}
	}
	return findings, c.deleted
}

func (c *findingCache) markStored() {
	clear(c.unsaved)
	c.deleted = nil
}

func (c *findingCache) markRepaired(name, repair string) {
	if _, ok := c.current[name]; ok {
		c.repairedBy[name] = repair
	}
}

func (c *findingCache) listCurrent() []allocation.Finding {
	list := make([]allocation.Finding, 0, len(c.current))
	for _, finding := range c.current {
		list = append(list, *finding)
	}
	slices.SortFunc(list, byFirstSeen)
	return list
}

// listEnded returns the ended findings. It omits one that is current again: there is one finding of
// each name.
func (c *findingCache) listEnded() []allocation.Finding {
	list := slices.DeleteFunc(slices.Clone(c.ended), func(f allocation.Finding) bool { return c.current[f.Name] != nil })
	slices.SortFunc(list, byFirstSeen)
	return list
}

func byFirstSeen(a, b allocation.Finding) int {
	return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Name, b.Name))
}
