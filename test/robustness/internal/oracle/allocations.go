package oracle

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// allocationChange is a change of an allocation, or of what a Service uses.
type allocationChange struct {
	revision   int64
	at         time.Duration
	allocation *history.AllocationVersion
	service    *history.ServiceVersion
}

// allocations finds addresses and ports that are in use and not allocated, or in use twice.
func allocations(h history.History, f *finding) {
	var all []allocationChange
	for i := range h.Allocation {
		all = append(all, allocationChange{revision: h.Allocation[i].Revision, at: h.Allocation[i].At, allocation: &h.Allocation[i]})
	}
	for i := range h.Services {
		all = append(all, allocationChange{revision: h.Services[i].Revision, at: h.Services[i].At, service: &h.Services[i]})
	}
	slices.SortFunc(all, func(a, b allocationChange) int { return cmp.Compare(a.revision, b.revision) })

	allocated, uses := map[string]bool{}, map[string][]string{}
	users, since := map[string]map[string]bool{}, map[string]time.Duration{}
	for _, c := range all {
		var touched []string
		if c.allocation != nil {
			touched = []string{c.allocation.Subject}
			allocated[c.allocation.Subject] = !c.allocation.Gone
		} else {
			name := c.service.Name
			touched = append(slices.Clone(uses[name]), c.service.Uses...)
			for _, subject := range uses[name] {
				delete(users[subject], name)
			}
			uses[name] = nil
			if !c.service.Gone {
				uses[name] = c.service.Uses
			}
			for _, subject := range uses[name] {
				if users[subject] == nil {
					users[subject] = map[string]bool{}
				}
				users[subject][name] = true
				f.count("unallocated", 1)
				f.count("shared", 1)
				if len(users[subject]) > 1 {
					f.breach("shared", history.Bootstrapsvc, c.at, "%s is used by %v", subject, slices.Sorted(maps.Keys(users[subject])))
				}
			}
		}
		for _, subject := range touched {
			wrong := len(users[subject]) > 0 && !allocated[subject]
			from, lasts := since[subject]
			switch {
			case wrong && !lasts:
				since[subject] = c.at
			case !wrong && lasts:
				f.lag("unallocated", history.Bootstrapsvc, from, c.at, subject+" is in use and not allocated")
				delete(since, subject)
			}
		}
	}
	for subject, from := range since {
		f.lag("unallocated", history.Bootstrapsvc, from, h.End, subject+" is in use and not allocated")
	}
}

// foreign finds changes of objects that belong to other programs.
func foreign(h history.History, f *finding) {
	first := map[string]int64{}
	ordered := slices.SortedFunc(slices.Values(h.Foreign), func(a, b history.ForeignVersion) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, v := range ordered {
		f.count("foreign", 1)
		if created, known := first[v.Object]; known {
			how := "changed"
			if v.Gone {
				how = "deleted"
			}
			f.breach("foreign", v.Owner, v.At, "%s, created at revision %d, was %s at revision %d", v.Object, created, how, v.Revision)
			continue
		}
		first[v.Object] = v.Revision
	}
}

// answers checks what the gateway says about leaders. An answer may be as old as the time since the
// question, and slack.
func answers(h history.History, f *finding) {
	claims := claimsByShard(h)
	failing := time.Duration(-1)
	for _, a := range slices.SortedFunc(slices.Values(h.Answers), func(a, b history.Answer) int { return cmp.Compare(a.Asked, b.Asked) }) {
		f.count("answer", 1)
		f.count("silence", 1)
		if a.Failed != "" {
			if failing < 0 {
				failing = a.Asked
			}
			continue
		}
		from := a.Asked
		if failing >= 0 {
			from, failing = failing, -1
		}
		f.lag("silence", history.Gateway, from, a.Answered, "the gateway does not answer")
		for _, leader := range a.Leaders {
			if a.Lacks(leader.Service, leader.Shard) || leader.Holder == "" {
				continue
			}
			if !slices.ContainsFunc(claims[shardOf{leader.Service, leader.Shard}], func(c history.Claim) bool {
				return c.Epoch == leader.Epoch && c.Holder == leader.Holder && recordedFrom(h, c.From) <= a.Answered && freshAt(h, until(h, c.To), a.Asked)
			}) {
				f.breach("answer", history.Gateway, a.Answered, "an answer to a question at %v says that %s leads shard %d of %s in term %d",
					a.Asked.Round(time.Millisecond), leader.Holder, leader.Shard, leader.Service, leader.Epoch)
			}
		}
	}
	if failing >= 0 {
		f.lag("silence", history.Gateway, failing, h.End, "the gateway does not answer")
	}
}

// freshness is the age that an answer without a label may have: a replica learns of a claim by its
// watch, or by a list that repairs what the watch missed.
const freshness = 2 * time.Second

// freshAt says whether an answer may tell what ended at a time, if the question was asked at
// another.
func freshAt(h history.History, ended, asked time.Duration) bool {
	return asked-ended <= freshness || asked-ended-h.Stalled(ended, asked) <= freshness
}
