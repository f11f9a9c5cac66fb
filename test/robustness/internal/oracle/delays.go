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
			_, part := h.Unexcused(history.Lag{Rule: rule, Service: d.service, From: h.Begin, To: h.End, Whole: d.whole})
			for from := part.At - part.Took; from < part.At; from += aSecond {
				to := endOf(*h, from, limit)
				if to > part.At {
					return false
				}
				if d.add(h, from, to) {
					return true
				}
			}
			return false
		}
	}
	return changes
}

// endOf returns the end of a time that has a length without stalls.
func endOf(h history.History, from, length time.Duration) time.Duration {
	to := from + length
	for missing := length; missing > 0; to += missing {
		missing = length - (to - from - h.Stalled(from, to))
	}
	return to
}

// delay adds a subject of a rule to a history. The subject is not as promised from one time to
// another, and is as promised before and after. add returns false, and changes nothing, if there is
// no such subject for this time.
type delay struct {
	service string
	// whole is that of the lags of the rule.
	whole bool
	add   func(h *history.History, from, to time.Duration) bool
}

// delays has each rule that has a bound. Many remove the other subjects of their rule, which would
// cost time: what they show depends on the faults and the stalls of the history, and little else.
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
			addPod(h, from, to)
			return true
		}},
		"duplicate": {service: history.Slicesvc, add: func(h *history.History, from, to time.Duration) bool {
			addService(h)
			addPod(h, from, 0)
			addSlice(h, "1", from, 0)
			addSlice(h, "2", from, to)
			return true
		}},
		"simple-reader": {service: history.Slicesvc, add: func(h *history.History, from, to time.Duration) bool {
			addService(h)
			addSlice(h, "1", from, from)
			addSlice(h, "2", from, 0)
			again := h.Slices[len(h.Slices)-1]
			again.Revision, again.At = 3, to
			h.Slices = append(h.Slices, again)
			return true
		}},
		"published": {service: history.Bootstrapsvc, add: func(h *history.History, from, to time.Duration) bool {
			if !listedBefore(*h, from) {
				return false
			}
			h.Servers = append(h.Servers, history.Server{Address: added, From: from, To: to})
			for i, v := range h.Endpoints {
				h.Endpoints[i].Addresses = append(slices.Clone(v.Addresses), added)
			}
			return true
		}},
		"unpublished": {service: history.Bootstrapsvc, add: func(h *history.History, from, to time.Duration) bool {
			if !listedBefore(*h, from) {
				return false
			}
			h.Servers = append(h.Servers, history.Server{Address: added, Running: true, From: from, To: to})
			return true
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

// listedBefore says whether the history knows what the endpoints are at a time.
func listedBefore(h history.History, at time.Duration) bool {
	return slices.ContainsFunc(h.Endpoints, func(v history.EndpointsVersion) bool { return v.At <= at })
}

// addDead adds a node that dies at one time and is marked at another. It is in a shard whose leader
// observes it for long enough, so that no change of the leader delays the mark.
func addDead(h *history.History, o Observation, from, to time.Duration) bool {
	const names = 100 // more than there are shards
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

// addPod adds a Pod that is ready. It is not deleted if to is 0.
func addPod(h *history.History, from, to time.Duration) {
	pod := history.PodVersion{Namespace: added, Name: added, Labels: selectAdded(), Address: added, Ready: true, Revision: 1, At: from}
	h.Pods = append(h.Pods, pod)
	if to > 0 {
		pod.Gone, pod.Revision, pod.At = true, 2, to
		h.Pods = append(h.Pods, pod)
	}
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
