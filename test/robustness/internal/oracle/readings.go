package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// mutations checks that the mark in etcd follows the accepted calls: each has its effect before its
// answer, and no other change undoes it.
func mutations(h history.History, f *finding) {
	versions := slices.SortedFunc(slices.Values(h.Marks), func(a, b history.MarkVersion) int { return cmp.Compare(a.Revision, b.Revision) })
	calls := slices.SortedFunc(slices.Values(h.Mutations), func(a, b history.Mutation) int { return cmp.Compare(a.Sent, b.Sent) })
	for _, call := range calls {
		if !call.Accepted {
			continue
		}
		f.count("lost", 1)
		if !stood(h, versions, call) {
			f.breach("lost", history.Bootstrapsvc, call.Answered, "the mark %q was accepted after a call at %v, and is not in etcd",
				call.Value, call.Sent.Round(time.Millisecond))
		}
	}
	for i, v := range versions {
		if i == 0 && v.At == 0 {
			continue // It is older than the record.
		}
		if !slices.ContainsFunc(calls, func(c history.Mutation) bool {
			last := c.Answered
			if !c.Accepted {
				last += lateEffect
			}
			return c.Value == v.Value && c.Sent <= v.At && recordedFrom(h, v.At) <= last
		}) {
			f.breach("lost", history.Bootstrapsvc, v.At, "the mark became %q at revision %d without a call", v.Value, v.Revision)
		}
	}
}

// lateEffect is how long a call that failed for its client may have its effect later: longer than a
// server works on a call.
const lateEffect = 15 * time.Second

// stood says whether the mark of a call was in etcd at a time during the call.
func stood(h history.History, versions []history.MarkVersion, call history.Mutation) bool {
	value := "" // before the first version
	since := time.Duration(0)
	for i := 0; ; i++ {
		end := h.End
		if i < len(versions) {
			end = versions[i].At
		}
		if value == call.Value && recordedFrom(h, since) <= call.Answered && call.Sent <= end {
			return true
		}
		if i == len(versions) {
			return false
		}
		value, since = versions[i].Value, versions[i].At
	}
}

// version is one state of an object that the gateway lists.
type version struct {
	at    time.Duration
	value string
	gone  bool
}

// objectsOf returns the versions of all objects of a kind, in order, and the shard of each.
func objectsOf(h history.History, kind string) (versions map[string][]version, shards map[string]int) {
	versions, shards = map[string][]version{}, map[string]int{}
	switch kind {
	case history.NodesRead:
		for _, v := range slices.SortedFunc(slices.Values(h.Nodes), func(a, b history.NodeVersion) int { return cmp.Compare(a.Revision, b.Revision) }) {
			versions[v.Name] = append(versions[v.Name], version{at: v.At, value: fmt.Sprint(v.Revision), gone: v.Gone})
			shards[v.Name] = shard.Of("node", v.Name, max(1, h.Shards[history.Leasesvc]))
		}
	case history.SlicesRead:
		of := map[string]string{}
		for _, v := range slices.SortedFunc(slices.Values(h.Slices), func(a, b history.SliceVersion) int { return cmp.Compare(a.Revision, b.Revision) }) {
			if v.Service != "" {
				of[v.Name] = v.Service
			}
			if of[v.Name] == "" {
				continue
			}
			versions[v.Name] = append(versions[v.Name], version{at: v.At, value: fmt.Sprint(v.Revision), gone: v.Gone})
			namespace, name, _ := strings.Cut(of[v.Name], "/")
			shards[v.Name] = shard.Of(namespace, name, max(1, h.Shards[history.Slicesvc]))
		}
		endWithServices(h, of, versions)
	case history.FindingsRead:
		list := []version{{}}
		for _, v := range slices.SortedFunc(slices.Values(h.Marks), func(a, b history.MarkVersion) int { return cmp.Compare(a.Revision, b.Revision) }) {
			list = append(list, version{at: v.At, value: v.Value})
		}
		versions[h.Marked] = list
	}
	return versions, shards
}

// endWithServices ends the slices of Services that are gone: slicesvc lists Services, and only a
// garbage collector, which this world has not, deletes their slices.
func endWithServices(h history.History, of map[string]string, versions map[string][]version) {
	gone := map[string]time.Duration{}
	for _, v := range h.Services {
		if v.Gone {
			gone[v.Name] = v.At
		}
	}
	for name, list := range versions {
		if at, ended := gone[of[name]]; ended {
			before := slices.DeleteFunc(slices.Clone(list), func(v version) bool { return v.at > at })
			// A write that was under way, or of a replica whose watch is late, may arrive after
			// that. It ends with the Service too: to list it is late, and no invention.
			for _, v := range list {
				if v.at > at && !v.gone {
					before = append(before, version{at: at, value: v.value})
				}
			}
			versions[name] = append(before, version{at: at, gone: true})
		}
	}
}

// readings checks what the gateway lists: no object is told in a state that had ended for longer
// than the age that the answer states, and none is left out, unless its shard is labelled missing.
func readings(h history.History, f *finding) {
	byKind := map[string][]history.Reading{}
	for _, r := range h.Readings {
		byKind[r.Kind] = append(byKind[r.Kind], r)
	}
	for kind, list := range byKind {
		versions, shards := objectsOf(h, kind)
		for _, r := range list {
			f.count("told", len(r.Objects))
			for name, of := range versions {
				told, listed := r.Objects[name]
				switch {
				case missing(r, shards[name]):
				case listed:
					outdated(h, f, r, name, told, of)
				default:
					if since, exists := existsSince(of, r); exists {
						f.lag("told", r.Service, since+r.Age, r.Asked, name+" is not listed, as before it was created")
					}
				}
			}
		}
	}
}

// missing says whether an answer is labelled to lack a shard.
func missing(r history.Reading, shard int) bool {
	return r.Partial || slices.Contains(r.Missing, shard)
}

// existsSince returns when an object was created that an answer must list: one that existed from
// the oldest moment that the answer may tell until the answer.
func existsSince(of []version, r history.Reading) (since time.Duration, exists bool) {
	for _, v := range of {
		switch {
		case v.at <= r.Asked-r.Age:
			if !v.gone && !exists {
				since = v.at
			}
			exists = !v.gone
		case v.at <= r.Answered && v.gone:
			return 0, false
		}
	}
	return since, exists
}

// outdated finds the time since which what an answer tells had ended.
func outdated(h history.History, f *finding, r history.Reading, name, told string, of []version) {
	for i, v := range slices.Backward(of) {
		if v.value != told || v.gone || recordedFrom(h, v.at) > r.Answered {
			continue
		}
		if i+1 < len(of) {
			f.lag("told", r.Service, of[i+1].at+r.Age, r.Asked, fmt.Sprintf("%s is listed in version %s, which had ended", name, told))
		}
		return
	}
	f.breach("told", r.Service, r.Answered, "%s is listed in version %q, which it never had", name, told)
}
