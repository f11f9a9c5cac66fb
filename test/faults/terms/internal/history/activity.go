package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// activity is the time in which a replica certainly acted for a shard under one term.
type activity struct {
	replica    string
	epoch      int64
	start, end int64
}

// activities returns the activities for a shard in the order of their epochs.
func (h History) activities(shard int) []activity {
	var found []activity
	for _, log := range h.Logs {
		place := map[int64]int{}
		for _, event := range log.Events {
			if event.Kind != Passed || event.Shard != shard {
				continue
			}
			i, known := place[event.Value.Epoch]
			if !known {
				i = len(found)
				place[event.Value.Epoch] = i
				found = append(found, activity{replica: log.Replica, epoch: event.Value.Epoch, start: event.To, end: event.To})
			}
			found[i].start = min(found[i].start, event.To)
			found[i].end = max(found[i].end, event.From)
		}
	}
	slices.SortFunc(found, func(a, b activity) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.replica, b.replica))
	})
	return found
}

// overlaps describes each pair of activities at one time, except for those that it counts as
// excused by a forced revocation.
func (h History) overlaps(shard int) (found []string, excused int) {
	all := h.activities(shard)
	for i, older := range all {
		for _, newer := range all[i+1:] {
			both := min(older.end, newer.end) - max(older.start, newer.start)
			switch {
			case both < 0:
			case h.revoked(older):
				excused++
			default:
				found = append(found, fmt.Sprintf("shard %d: %s at epoch %d and %s at epoch %d both acted for %v",
					shard, older.replica, older.epoch, newer.replica, newer.epoch, time.Duration(both)))
			}
		}
	}
	return found, excused
}

// revoked reports whether the activity's lease was revoked by force, at most a TTL before the
// activity ended.
func (h History) revoked(a activity) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Kind == Revocation && f.Replica == a.replica && a.start <= f.To && a.end <= f.To+int64(h.TTL)
	})
}

// gap is a time without an activity for a shard that had one before.
type gap struct{ start, end int64 }

// gaps returns the gaps of a shard in order.
func (h History) gaps(shard int) []gap {
	all := h.activities(shard)
	slices.SortFunc(all, func(a, b activity) int { return cmp.Compare(a.start, b.start) })
	var found []gap
	for i, a := range all {
		if i == 0 {
			continue
		}
		if covered := latestEnd(all[:i]); covered < a.start {
			found = append(found, gap{start: covered, end: a.start})
		}
	}
	if covered := latestEnd(all); len(all) > 0 && covered < h.End {
		found = append(found, gap{start: covered, end: h.End})
	}
	return found
}

func latestEnd(all []activity) int64 {
	var end int64
	for _, a := range all {
		end = max(end, a.end)
	}
	return end
}

// longestWithoutFault returns the longest part of a gap without a fault. A part begins with the gap
// or after a fault, and ends with the gap or before the next fault.
func (h History) longestWithoutFault(g gap) time.Duration {
	faults := slices.SortedFunc(slices.Values(h.Faults), func(a, b Fault) int { return cmp.Compare(a.From, b.From) })
	longest, since := int64(0), g.start
	for _, f := range faults {
		if f.From >= g.end {
			break
		}
		longest = max(longest, f.From-since)
		since = max(since, f.over())
	}
	return time.Duration(max(longest, g.end-since))
}

// over returns the time at which the fault's effect on all replicas has ended.
func (f Fault) over() int64 {
	if f.Kind == Outage {
		return f.To + int64(ElectionTimeout)
	}
	return f.To
}
