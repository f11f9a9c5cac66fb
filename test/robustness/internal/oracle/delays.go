package oracle

import (
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// aSecond is by how much a delay is longer or shorter than its rule allows.
const aSecond = time.Second

// added is the name of what a delay adds to a history.
const added = "added"

// TooLong returns, for each rule of Check with a bound, a change of a history. It adds a subject
// that is not as promised for a second longer than the rule allows, in a time for which no fault
// accounts. A change returns false if the faults and the stalls of the history leave no such time,
// so that it could have shown no breach of the rule.
func TooLong(bounds Bounds) map[string]func(*history.History) bool {
	return delaysOf(bounds, aSecond)
}

// JustAllowed returns changes like those of TooLong, for a second less than the rules allow.
func JustAllowed(bounds Bounds) map[string]func(*history.History) bool {
	return delaysOf(bounds, -aSecond)
}

func delaysOf(bounds Bounds, beyond time.Duration) map[string]func(*history.History) bool {
	changes := map[string]func(*history.History) bool{}
	for rule, d := range delays(bounds) {
		limit := bounds.Promised[rule] + bounds.Margin + beyond
		changes[rule] = func(h *history.History) bool {
			from, to, found := unexcusedTime(*h, history.Lag{Rule: rule, Service: d.service, From: h.Begin, To: h.End, Whole: d.whole}, limit)
			return found && d.add(h, from, to)
		}
	}
	return changes
}

// unexcusedTime returns a time for which no fault accounts, and which has a length without stalls.
func unexcusedTime(h history.History, lag history.Lag, length time.Duration) (from, to time.Duration, found bool) {
	_, part := h.Unexcused(lag)
	from = part.At - part.Took
	for to = from + length; to <= part.At; {
		missing := length - (to - from - h.Stalled(from, to))
		if missing <= 0 {
			return from, to, true
		}
		to += missing
	}
	return 0, 0, false
}

// delay adds a subject of a rule to a history. The subject is not as promised from one time to
// another, and is as promised before and after.
type delay struct {
	service string
	// whole is that of the lags of the rule.
	whole bool
	add   func(h *history.History, from, to time.Duration) bool
}

// delays has each rule that has a bound. Other subjects of the rule are removed where they would
// cost time, so only the faults, the stalls and the claims of the history matter.
func delays(bounds Bounds) map[string]delay {
	return map[string]delay{
		"holder": {service: history.Slicesvc, add: func(h *history.History, from, to time.Duration) bool {
			number := 0
			for _, c := range h.Claims {
				number = max(number, c.Shard+1)
			}
			h.Shards = map[string]int{history.Slicesvc: number + 1}
			h.Claims = []history.Claim{{Service: history.Slicesvc, Shard: number, Holder: added, To: from}, {Service: history.Slicesvc, Shard: number, Holder: added, Epoch: 1, From: to}}
			for shard := range number {
				h.Claims = append(h.Claims, history.Claim{Service: history.Slicesvc, Shard: shard, Holder: added})
			}
			return true
		}},
		"dead": {service: history.Leasesvc, whole: true, add: func(h *history.History, from, to time.Duration) bool {
			return addDead(h, bounds.Observation, from, to)
		}},
		"lease": {service: history.Leasesvc, add: func(h *history.History, from, to time.Duration) bool {
			h.Lives = []history.Life{{Node: added}}
			h.Renewals = []history.Renewal{{Node: added, Revision: 1, Duration: from}, {Node: added, Revision: 2, At: to, Duration: h.End}}
			return true
		}},
		"present": {service: history.Slicesvc, add: func(h *history.History, from, to time.Duration) bool {
			addService(h)
			addSlice(h, "1", from, to)
			return true
		}},
		"absent": {service: history.Slicesvc, add: func(h *history.History, from, to time.Duration) bool {
			addService(h)
			addPod(h, from)
			h.Pods = append(h.Pods, history.PodVersion{Namespace: added, Name: added, Gone: true, Revision: 2, At: to})
			return true
		}},
		"duplicate": {service: history.Slicesvc, add: func(h *history.History, from, to time.Duration) bool {
			addService(h)
			addPod(h, from)
			addSlice(h, "1", from, 0)
			addSlice(h, "2", from, to)
			return true
		}},
		"published": {service: history.Bootstrapsvc, add: func(h *history.History, from, to time.Duration) bool {
			h.Servers = append(h.Servers, history.Server{Address: added, From: from, To: to})
			listed := false
			for i, v := range h.Endpoints {
				h.Endpoints[i].Addresses = append(slices.Clone(v.Addresses), added)
				listed = listed || v.At <= from
			}
			return listed
		}},
		"unpublished": {service: history.Bootstrapsvc, add: func(h *history.History, from, to time.Duration) bool {
			h.Servers = append(h.Servers, history.Server{Address: added, Running: true, From: from, To: to})
			return slices.ContainsFunc(h.Endpoints, func(v history.EndpointsVersion) bool { return v.At <= from })
		}},
		"unallocated": {service: history.Bootstrapsvc, add: func(h *history.History, from, to time.Duration) bool {
			h.Services = []history.ServiceVersion{{Name: added, Uses: []string{added}, Revision: 1, At: from}, {Name: added, Gone: true, Revision: 2, At: to}}
			h.Allocation = nil
			return true
		}},
		"silence": {service: history.Gateway, add: func(h *history.History, from, to time.Duration) bool {
			h.Answers = slices.DeleteFunc(h.Answers, func(a history.Answer) bool { return a.Asked <= to && a.Answered >= from })
			h.Answers = append(h.Answers, history.Answer{Asked: from, Answered: from, Failed: added}, history.Answer{Asked: to, Answered: to})
			return true
		}},
		"told": {service: history.Leasesvc, add: func(h *history.History, from, to time.Duration) bool {
			h.Nodes = []history.NodeVersion{{Name: added, Revision: 1}, {Name: added, Revision: 2, At: from}}
			h.Readings = []history.Reading{{Kind: history.NodesRead, Service: history.Leasesvc, Asked: to, Answered: to, Objects: map[string]string{added: "1"}}}
			return true
		}},
	}
}

// addDead adds a node that dies at one time and is marked at another. It is in a shard whose leader
// observes it for long enough, so that no change of the leader delays the mark.
func addDead(h *history.History, o Observation, from, to time.Duration) bool {
	const names = 1000 // enough for one in each shard
	for n := range names {
		life := history.Life{Node: fmt.Sprintf("%s-%d", added, n), To: from}
		if o.markedBy(*h, life)-o.Grace > from {
			continue
		}
		h.Lives = []history.Life{life}
		h.Nodes = []history.NodeVersion{{Name: life.Node, Ready: "True", Revision: 1}, {Name: life.Node, Ready: unknown, Revision: 2, At: to}}
		return true
	}
	return false
}

func selectAdded() map[string]string { return map[string]string{added: added} }

// addService adds a Service that selects what a delay adds. There is no other one.
func addService(h *history.History) {
	h.Services = []history.ServiceVersion{{Name: added + "/" + added, Selector: selectAdded()}}
	h.Pods, h.Slices = nil, nil
}

// addPod adds a Pod that is ready.
func addPod(h *history.History, from time.Duration) {
	h.Pods = append(h.Pods, history.PodVersion{Namespace: added, Name: added, Labels: selectAdded(), Address: added, Ready: true, Revision: 1, At: from})
}

// addSlice adds a slice with an endpoint that is ready. It is not deleted if to is 0.
func addSlice(h *history.History, name string, from, to time.Duration) {
	slice := history.SliceVersion{Name: name, Service: added + "/" + added, Ready: map[string]bool{added: true}, Revision: 1, At: from}
	h.Slices = append(h.Slices, slice)
	if to > 0 {
		slice.Gone, slice.Revision, slice.At = true, 2, to
		h.Slices = append(h.Slices, slice)
	}
}
