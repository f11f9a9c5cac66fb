package oracle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

const s = time.Second

// bounds allow the lags of the sound history and no spoiled one.
func bounds() Bounds {
	all := Bounds{Promised: map[string]time.Duration{}, Observation: Observation{Grace: 5 * s, Least: 2 * s, Quiet: 2 * s, Unstored: s}}
	for _, rule := range []string{"holder", "dead", "lease", "present", "absent", "duplicate", "simple-reader", "published", "unpublished", "unallocated", "silence", "told", "call"} {
		all.Promised[rule] = 6 * s
	}
	return all
}

// sound is a history in which every rule has something to judge, and none is broken. The leader of
// the only shard of slicesvc is killed at 20 s.
func sound() history.History {
	web := map[string]string{"app": "web"}
	renewed := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	return history.History{
		Begin: 10 * s, End: 60 * s, Shards: map[string]int{history.Slicesvc: 1},
		Calls:   []history.Call{{Method: "Get", Target: history.Gateway, From: 11 * s, To: 12 * s}},
		Levels:  []history.Level{{At: 59 * s, Service: history.Slicesvc, Process: "b", What: "memory", Value: 1, Most: 2}},
		Windows: []history.Window{{Fault: "leader killed", Service: history.Slicesvc, From: 20 * s, To: 20 * s}},
		Downs:   []history.Down{{Process: "a", From: 20 * s}},
		Claims: []history.Claim{
			{Service: history.Slicesvc, Holder: "a", Epoch: 5, Gone: 40, From: 1 * s, To: 24 * s},
			{Service: history.Slicesvc, Holder: "b", Epoch: 41, From: 25 * s},
		},
		Acts: []history.Act{
			{Service: history.Slicesvc, Process: "a", Object: "slices demo/web-1", Verb: "create", Sent: 12 * s, Answered: 13 * s, Revision: 22},
			{Service: history.Slicesvc, Process: "b", Object: "slices demo/web-1", Verb: "update", Sent: 31 * s, Answered: 32 * s, Revision: 52},
			{Service: history.Leasesvc, Process: "c", Shard: history.AnyShard, Object: "nodes n2", Verb: "patch", Sent: 31 * s, Answered: 32 * s, Revision: 55},
		},
		Nodes: []history.NodeVersion{
			{Revision: 6, At: 2 * s, Name: "n1", Ready: "True"}, {Revision: 7, At: 2 * s, Name: "n2", Ready: "True"},
			{Revision: 55, At: 34 * s, Name: "n2", Ready: "Unknown"},
		},
		Lives: []history.Life{{Node: "n1", From: 3 * s}, {Node: "n2", Kubelet: true, From: 3 * s, To: 29 * s}},
		Renewals: []history.Renewal{
			{Revision: 10, At: 5 * s, Node: "n1", Renewed: renewed, Duration: 40 * s},
			{Revision: 53, At: 33 * s, Node: "n1", Renewed: renewed.Add(28 * s), Duration: 40 * s},
		},
		Services: []history.ServiceVersion{
			{Revision: 20, At: 10 * s, Name: "demo/web", Selector: web, Uses: []string{"10.0.0.1", "30001"}},
			{Revision: 23, At: 15 * s, Name: "demo/other", Uses: []string{"10.0.0.2"}},
		},
		Pods: []history.PodVersion{
			{Revision: 21, At: 11 * s, Namespace: "demo", Name: "web-a", Labels: web, Address: "10.1.0.1", Ready: true},
			{Revision: 51, At: 30 * s, Namespace: "demo", Name: "web-a", Labels: web, Address: "10.1.0.1"},
			{Revision: 54, At: 33 * s, Namespace: "demo", Name: "web-a", Gone: true},
		},
		Slices: []history.SliceVersion{
			{Revision: 22, At: 12 * s, Name: "demo/web-1", Service: "demo/web", Ready: map[string]bool{"10.1.0.1": true}},
			{Revision: 52, At: 32 * s, Name: "demo/web-1", Service: "demo/web", Ready: map[string]bool{"10.1.0.1": false}},
		},
		Servers: []history.Server{
			{Address: "10.99.0.1", Running: true, From: 0},
			{Address: "10.99.0.2", Running: true, From: 0, To: 40 * s}, {Address: "10.99.0.2", From: 40 * s},
		},
		Endpoints: []history.EndpointsVersion{
			{Revision: 8, At: 3 * s, Addresses: []string{"10.99.0.1", "10.99.0.2"}},
			{Revision: 60, At: 44 * s, Addresses: []string{"10.99.0.1"}},
		},
		Allocation: []history.AllocationVersion{
			{Revision: 18, At: 9 * s, Subject: "10.0.0.1"}, {Revision: 19, At: 9 * s, Subject: "30001"}, {Revision: 22, At: 14 * s, Subject: "10.0.0.2"},
		},
		Foreign: []history.ForeignVersion{{Revision: 9, At: 4 * s, Object: "slices demo/by-hand", Owner: history.Slicesvc}},
		Answers: []history.Answer{
			{Asked: 12 * s, Answered: 13 * s, Leaders: []history.Leader{{Service: history.Slicesvc, Holder: "a", Epoch: 5}}},
			{Asked: 27 * s, Answered: 27 * s, Partial: map[string]bool{history.Slicesvc: true}, Leaders: []history.Leader{{Service: history.Slicesvc, Holder: "a", Epoch: 5}}},
			{Asked: 28 * s, Answered: 28 * s, Failed: "no answer"},
			{Asked: 30 * s, Answered: 31 * s, Leaders: []history.Leader{{Service: history.Slicesvc, Holder: "b", Epoch: 41}}},
		},
		Readings: []history.Reading{
			{Asked: 12 * s, Answered: 13 * s, Kind: history.NodesRead, Service: history.Leasesvc, Objects: map[string]string{"n1": "6", "n2": "7"}},
			{Asked: 36 * s, Answered: 36 * s, Kind: history.NodesRead, Service: history.Leasesvc, Age: s, Objects: map[string]string{"n1": "6", "n2": "7"}},
			{Asked: 50 * s, Answered: 50 * s, Kind: history.NodesRead, Service: history.Leasesvc, Objects: map[string]string{"n2": "55"}, Partial: true},
			{Asked: 33 * s, Answered: 33 * s, Kind: history.SlicesRead, Service: history.Slicesvc, Objects: map[string]string{"demo/web-1": "52"}},
			{Asked: 38 * s, Answered: 38 * s, Kind: history.FindingsRead, Service: history.Bootstrapsvc, Objects: map[string]string{"findings/f": "1"}},
			{Asked: 45 * s, Answered: 45 * s, Kind: history.NodesRead, Service: history.Leasesvc, Objects: map[string]string{"n1": "6", "n2": "55"}},
		},
		Mutations: []history.Mutation{
			{Sent: 20 * s, Answered: 22 * s, Value: "1", Accepted: true}, {Sent: 40 * s, Answered: 41 * s},
			{Sent: 50 * s, Answered: 51 * s, Value: "2"},
		},
		Marked: "findings/f",
		Marks:  []history.MarkVersion{{Revision: 35, At: 21 * s, Value: "1"}, {Revision: 58, At: 43 * s}, {Revision: 61, At: 55 * s, Value: "2"}},
	}
}

// withLeader adds the claim of leasesvc that the write to the Node needs.
func withLeader(h history.History) history.History {
	h.Claims = append(h.Claims, history.Claim{Service: history.Leasesvc, Holder: "c", Epoch: 4, From: 1 * s})
	h.Shards[history.Leasesvc] = 1
	return h
}

func TestCheck_SoundHistoryHasNoViolation(t *testing.T) {
	report := Check(withLeader(sound()), bounds())
	for _, v := range report.Violations {
		t.Error(v)
	}
	if len(report.Measures) < 6 {
		t.Errorf("%d rules measured a lag, want one for most: %v", len(report.Measures), report.Measures)
	}
	for _, rule := range []string{"holder", "act", "stale", "living", "dead", "lease", "present", "published", "unallocated", "foreign", "answer"} {
		if report.Traffic[rule] == 0 {
			t.Errorf("rule %s judged nothing", rule)
		}
	}
}

// Each case spoils the sound history in one point.
func TestCheck_EveryRuleFindsItsBreach(t *testing.T) {
	for name, c := range map[string]struct {
		rule  string
		spoil func(*history.History)
	}{
		"no leader for long": {"holder", func(h *history.History) { h.Claims[1].From = 31 * s }},
		"leader is frozen": {"holder", func(h *history.History) {
			h.Downs = append(h.Downs, history.Down{Process: "b", From: 40 * s, To: 47 * s})
		}},
		"leader is dead and keeps its key": {"holder", func(h *history.History) { h.Downs[0].From = 17 * s; h.Windows[0].From, h.Windows[0].To = 17*s, 17*s }},
		"no leader at the end":             {"holder", func(h *history.History) { h.Claims[1].To = 50 * s }},
		"two leaders of a shard":           {"single", func(h *history.History) { h.Claims[1].Epoch = 39 }},
		"a term that has no end":           {"single", func(h *history.History) { h.Claims[0].Gone = 0 }},
		"write to a Node of another shard": {"act", func(h *history.History) {
			h.Shards[history.Leasesvc], h.Acts[2].Object = 100, "nodes /n2"
			h.Claims[2].Shard = (shard.Of("node", "n2", 100) + 1) % 99
		}},
		"kubelet is marked after etcd was without quorum": {"living", func(h *history.History) {
			h.Lives[1].To, h.Grace = 0, 10*s
			h.Renewals = append(h.Renewals, history.Renewal{Revision: 54, At: 20 * s, Node: "n2"})
			h.Windows = append(h.Windows, history.Window{Fault: "etcd stopped", NoQuorum: true, From: 21 * s, To: 32 * s})
		}},
		"write after the end of the term": {"act", func(h *history.History) { h.Acts[0].Sent, h.Acts[0].Answered = 27*s, 28*s }},
		"write between two terms": {"act", func(h *history.History) {
			h.Acts[1].Sent, h.Acts[1].Answered = 24100*time.Millisecond, 24200*time.Millisecond
		}},
		"write of a replica without a shard":    {"act", func(h *history.History) { h.Acts[2].Process = "d" }},
		"write over one of a later term":        {"stale", func(h *history.History) { h.Acts[0].Revision, h.Acts[0].Answered = 53, 33*s }},
		"living node is marked":                 {"living", func(h *history.History) { h.Nodes[2].Name = "n1" }},
		"node with a stopped agent lives again": {"living", func(h *history.History) { h.Lives[1].To, h.Lives[1].Kubelet = 36*s, false }},
		"kubelet that renews is marked": {"living", func(h *history.History) {
			h.Lives[1].To, h.Grace = 0, 10*s
			h.Renewals = append(h.Renewals, history.Renewal{Revision: 54, At: 33 * s, Node: "n2"})
		}},
		"dead node is marked late":      {"dead", func(h *history.History) { h.Nodes[2].At = 36 * s }},
		"dead node is never marked":     {"dead", func(h *history.History) { h.Nodes = h.Nodes[:2] }},
		"Lease lapses":                  {"lease", func(h *history.History) { h.Renewals[0].Duration = 20 * s }},
		"Lease is deleted":              {"lease", func(h *history.History) { h.Renewals[1].Gone = true }},
		"Lease goes back":               {"regress", func(h *history.History) { h.Renewals[1].Renewed = h.Renewals[0].Renewed.Add(-s) }},
		"unready Pod stays an endpoint": {"present", func(h *history.History) { h.Slices[1].At = 37 * s }},
		"gone Pod stays an endpoint":    {"present", func(h *history.History) { h.Slices = h.Slices[:1] }},
		"ready Pod is no endpoint":      {"absent", func(h *history.History) { h.Slices[0].Service = "demo/other" }},
		"address in two slices": {"duplicate", func(h *history.History) {
			second := h.Slices[0]
			second.Name, second.Revision = "demo/web-2", 24
			h.Slices = append(h.Slices, second)
		}},
		"an endpoint moves to another slice": {"simple-reader", func(h *history.History) {
			giver, taker := h.Slices[0], h.Slices[0]
			taker.Name, taker.Revision, taker.At = "demo/web-2", 23, 13*s
			giver.Revision, giver.At, giver.Gone = 24, 14*s, true
			h.Slices = []history.SliceVersion{h.Slices[0], taker, giver}
		}},
		"no endpoint of a kube-apiserver": {"empty", func(h *history.History) { h.Endpoints[1].Addresses = nil }},
		"dead kube-apiserver stays":       {"published", func(h *history.History) { h.Endpoints[1].At = 47 * s }},
		"running kube-apiserver leaves":   {"unpublished", func(h *history.History) { h.Endpoints[1].Addresses = []string{"10.99.0.3"} }},
		"address in use is freed": {"unallocated", func(h *history.History) {
			h.Allocation = append(h.Allocation, history.AllocationVersion{Revision: 30, At: 26 * s, Subject: "10.0.0.1", Gone: true})
		}},
		"port is never allocated": {"unallocated", func(h *history.History) { h.Allocation[1].Subject = "30002" }},
		"address is given twice":  {"shared", func(h *history.History) { h.Services[1].Uses = []string{"10.0.0.1"} }},
		"object of another program": {"foreign", func(h *history.History) {
			h.Foreign = append(h.Foreign, history.ForeignVersion{Revision: 33, At: 29 * s, Object: h.Foreign[0].Object})
		}},
		"gateway names a former leader":                 {"answer", func(h *history.History) { h.Answers[1].Partial = nil }},
		"gateway names no such term":                    {"answer", func(h *history.History) { h.Answers[3].Leaders[0].Epoch = 42 }},
		"gateway answers late":                          {"silence", func(h *history.History) { h.Answers[3].Answered = 38 * s }},
		"gateway fails for long":                        {"silence", func(h *history.History) { h.Answers[3].Failed = "no answer" }},
		"a list has an old version":                     {"told", func(h *history.History) { h.Readings[1].Asked = 45 * s; h.Readings[1].Answered = 45 * s }},
		"a list has no such version":                    {"told", func(h *history.History) { h.Readings[3].Objects = map[string]string{"demo/web-1": "53"} }},
		"a list leaves a Node out":                      {"told", func(h *history.History) { h.Readings[2].Partial = false }},
		"a list has an old mark":                        {"told", func(h *history.History) { h.Readings[4].Objects = map[string]string{"findings/f": ""} }},
		"an accepted mark is not stored":                {"lost", func(h *history.History) { h.Marks = h.Marks[1:] }},
		"a mark is stored after the answer":             {"lost", func(h *history.History) { h.Mutations[0].Answered = 20500 * time.Millisecond }},
		"a mark vanishes":                               {"lost", func(h *history.History) { h.Marks[1].At = 39 * s }},
		"a mark vanishes long after a call that failed": {"lost", func(h *history.History) { h.Mutations[1].Sent, h.Mutations[1].Answered = 22*s, 23*s }},
		"a mark comes back": {"lost", func(h *history.History) {
			h.Marks = append(h.Marks, history.MarkVersion{Revision: 59, At: 44 * s, Value: "1"})
		}},
		"rule without a bound is a mistake": {"silence", func(h *history.History) { h.Answers[0].Answered = 14 * s }},
		"lag of a service without the fault": {"holder", func(h *history.History) {
			h.Windows[0].Service = history.Leasesvc
			h.Claims[0].To = 18900 * time.Millisecond
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := withLeader(sound())
			c.spoil(&h)
			allowed := bounds()
			if strings.HasPrefix(name, "rule without") {
				delete(allowed.Promised, c.rule)
			}
			report := Check(h, allowed)
			if !slices.ContainsFunc(report.Violations, func(v Violation) bool { return v.Rule == c.rule }) {
				t.Errorf("violations are %v, want one of rule %s", report.Violations, c.rule)
			}
		})
	}
}

// What the machine may have caused is no verdict, and is not lost either.
func TestCheck_WhatTheMachineMayHaveCausedIsUndecided(t *testing.T) {
	stall := func(from, to time.Duration) history.Window { return history.Window{From: from, To: to} }
	for name, c := range map[string]struct {
		rule  string
		spoil func(*history.History)
	}{
		"a long lag": {"present", func(h *history.History) {
			h.Slices[1].At = 37 * s
			h.Windows = append(h.Windows, stall(31*s, 33*s))
		}},
		"a living node": {"living", func(h *history.History) {
			h.Nodes[2].Name, h.Grace = "n1", 4*s
			h.Windows = append(h.Windows, stall(31*s, 34*s))
		}},
		"a failed call": {"call", func(h *history.History) {
			h.Calls = append(h.Calls, history.Call{Method: "Get", From: 50 * s, To: 51 * s, Failed: "UNAVAILABLE"})
			h.Windows = append(h.Windows, stall(46*s, 50*s))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := withLeader(sound())
			c.spoil(&h)
			of := func(v Violation) bool { return v.Rule == c.rule }
			report := Check(h, bounds(), c.rule)
			if slices.ContainsFunc(report.Violations, of) || !slices.ContainsFunc(report.Undecided, of) {
				t.Errorf("violations %v, undecided %v; want it undecided", report.Violations, report.Undecided)
			}
			h.Windows = h.Windows[:1]
			if report := Check(h, bounds(), c.rule); !slices.ContainsFunc(report.Violations, of) {
				t.Errorf("violations without the stall: %v", report.Violations)
			}
		})
	}
}

// A part that an answer lacks excuses its shards, and all of the service only if it names none.
func TestAnswers_AMissingShardExcusesNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		missing map[string][]int
		correct bool
	}{
		"the shard":     {map[string][]int{history.Slicesvc: {3, 0}}, true},
		"another shard": {map[string][]int{history.Slicesvc: {3}}, false},
		"no shard":      {nil, true},
	} {
		h := withLeader(sound()) // The second answer names a former leader of shard 0.
		h.Answers[1].Missing = c.missing
		if report := Check(h, bounds(), "answer"); (len(report.Violations) == 0) != c.correct {
			t.Errorf("%s: violations are %v, want none: %t", name, report.Violations, c.correct)
		}
	}
}

// Each rule is listed, has a spoiler, and belongs to a judge.
func TestRules_AreThoseOfTheJudges(t *testing.T) {
	var listed, judged []string
	for _, rule := range Rules() {
		listed = append(listed, rule.Name)
		if Spoilers()[rule.Name] == nil {
			t.Errorf("rule %s has no spoiler", rule.Name)
		}
	}
	for _, j := range judges(bounds()) {
		judged = append(judged, strings.Fields(j.rules)...)
	}
	slices.Sort(listed)
	slices.Sort(judged)
	if !slices.Equal(listed, judged) {
		t.Errorf("Rules lists %v, and the judges have %v", listed, judged)
	}
}

// A change that reaches the record late, because the record was behind, was made before.
func TestCheck_GapOfTheRecord(t *testing.T) {
	for name, c := range map[string]struct {
		gaps    []history.Gap
		correct bool
	}{
		"no gap":                       {nil, false},
		"gap that has the answer":      {[]history.Gap{{From: 29 * s, To: 33 * s}}, true},
		"gap after the answer":         {[]history.Gap{{From: 31500 * time.Millisecond, To: 33 * s}}, false},
		"gap that ended before":        {[]history.Gap{{From: 29 * s, To: 31 * s}}, false},
		"gap that begins after change": {[]history.Gap{{From: 32 * s, To: 40 * s}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := withLeader(sound())
			h.Gaps, h.Claims[1].From = c.gaps, 32*s // An answer at 31 s names it.
			if report := Check(h, bounds(), "answer"); (len(report.Violations) == 0) != c.correct {
				t.Errorf("violations are %v, want none: %t", report.Violations, c.correct)
			}
		})
	}
}

// A write without an order is found among many that have one.
func TestActs_ManyWritesOfTwoTerms(t *testing.T) {
	h := history.History{End: 1000 * s}
	const terms = 40
	for i := range terms {
		holder := string(rune('a' + i%3))
		from := time.Duration(20*i) * s
		h.Claims = append(h.Claims, history.Claim{Service: history.Slicesvc, Holder: holder, Epoch: int64(100*i + 1), Gone: int64(100*i + 90), From: from + s, To: from + 19*s})
		for n := range 15 {
			sent := from + time.Duration(1+n)*s
			h.Acts = append(h.Acts, history.Act{Service: history.Slicesvc, Process: holder, Object: "o", Sent: sent, Answered: sent + 3*s, Revision: int64(100*i + 2 + n)})
		}
	}
	if report := Check(h, bounds()); len(report.Violations) > 0 {
		t.Fatalf("%d violations, the first: %v", len(report.Violations), report.Violations[0])
	}
	late := h.Acts[20]
	late.Sent, late.Answered, late.Revision = late.Sent+20*s, late.Answered+20*s, late.Revision+100
	h.Acts = append(h.Acts, late)
	if report := Check(h, bounds()); len(report.Violations) == 0 {
		t.Error("a write under a term of another replica is not found")
	}
}

// The times of a record that was behind do not put a claim before a write that etcd has before it.
func TestStale_RevisionsOrderClaimsAndWrites(t *testing.T) {
	write := func(process string, at time.Duration, revision int64) history.Act {
		return history.Act{Service: history.Slicesvc, Process: process, Object: "o", Sent: at, Answered: at + s, Revision: revision}
	}
	h := history.History{
		End:  100 * s,
		Gaps: []history.Gap{{From: 10 * s, To: 30 * s}},
		Claims: []history.Claim{
			{Service: history.Slicesvc, Holder: "a", Epoch: 10, Gone: 20, From: 2 * s, To: 20 * s},
			{Service: history.Slicesvc, Holder: "b", Epoch: 21, Gone: 29, From: 21 * s, To: 28 * s},
			{Service: history.Slicesvc, Holder: "a", Epoch: 30, From: 29 * s},
		},
		Acts: []history.Act{write("a", 15*s, 15), write("b", 22*s, 25), write("a", 31*s, 35)},
	}
	if report := Check(h, bounds(), "stale"); len(report.Violations) > 0 {
		t.Errorf("violations are %v, want none", report.Violations)
	}
	h.Acts[1].Revision = 36
	if report := Check(h, bounds(), "stale"); len(report.Violations) != 1 {
		t.Errorf("violations are %v, want the write under the earlier term", report.Violations)
	}
}

// A request on a slow link arrives after its sender has given its shard up, and the next process of
// the replica runs by then.
func TestActs_LateArrivalIsNoLateWrite(t *testing.T) {
	h := history.History{
		End:    100 * s,
		Shards: map[string]int{history.Slicesvc: 1},
		Claims: []history.Claim{
			{Service: history.Slicesvc, Holder: "a#1", Epoch: 10, Gone: 20, From: 2 * s, To: 20 * s},
			{Service: history.Slicesvc, Holder: "b#1", Epoch: 21, From: 21 * s},
		},
		Acts: []history.Act{
			{Service: history.Slicesvc, Process: "a#1", Object: "o", Sent: 15 * s, Answered: 15 * s, Revision: 15},
			{Service: history.Slicesvc, Process: "a#2", Object: "o", Sent: 22 * s, Answered: 22 * s, Revision: 22},
		},
	}
	if report := Check(h, bounds(), "act", "stale"); len(report.Violations) == 0 {
		t.Error("a write of a process without a term is not found")
	}
	h.Windows = []history.Window{{Fault: "slow link", Service: history.Slicesvc, From: 14 * s, To: 21500 * time.Millisecond, Late: 2500 * time.Millisecond}}
	if report := Check(h, bounds(), "act", "stale"); len(report.Violations) > 0 {
		t.Errorf("violations are %v, want none of a write that was sent in time", report.Violations)
	}
	h.Windows[0].Late = s
	if report := Check(h, bounds(), "act", "stale"); len(report.Violations) == 0 {
		t.Error("a write that was sent after the end of the term is not found")
	}
}

// The spoilers, with which each real record is checked too, break their rules.
func TestSpoilers_BreakTheirRules(t *testing.T) {
	spoilers := Spoilers()
	for rule, spoil := range spoilers {
		t.Run(rule, func(t *testing.T) {
			h := withLeader(sound())
			if !spoil(&h) {
				t.Fatal("the sound history has nothing to spoil")
			}
			if report := Check(h, bounds(), rule); !slices.ContainsFunc(report.Violations, func(v Violation) bool { return v.Rule == rule }) {
				t.Errorf("violations are %v, want one of rule %s", report.Violations, rule)
			}
			if empty := (history.History{}); spoil(&empty) {
				t.Error("an empty history was spoiled")
			}
		})
	}
	for rule := range bounds().Promised {
		if spoilers[rule] == nil {
			t.Errorf("rule %s has no spoiler", rule)
		}
	}
}

// The changes with which each real record is checked too: a second decides.
func TestDelays_ASecondDecides(t *testing.T) {
	allowed := JustAllowed(bounds())
	for rule, lengthen := range TooLong(bounds()) {
		t.Run(rule, func(t *testing.T) {
			for name, c := range map[string]struct {
				change func(*history.History) bool
				breach bool
			}{"too long": {lengthen, true}, "just allowed": {allowed[rule], false}} {
				h := withLeader(sound())
				h.Windows = append(h.Windows, history.Window{From: 21 * s, To: 22 * s}, history.Window{From: 23 * s, To: 25 * s})
				changed := h.Clone()
				if !c.change(&changed) {
					t.Fatalf("%s: the sound history has no time for it", name)
				}
				if report := Check(changed, bounds(), rule); (len(report.Violations) > 0) != c.breach {
					t.Errorf("%s: violations are %v, want some: %t", name, report.Violations, c.breach)
				}
				if report := Check(h, bounds(), rule); len(report.Violations) > 0 {
					t.Errorf("%s: the change of a clone changed the history: %v", name, report.Violations)
				}
			}
			busy := withLeader(sound())
			for at := busy.Begin; at < busy.End; at += s {
				busy.Windows = append(busy.Windows, history.Window{From: at, To: at + 900*time.Millisecond})
			}
			if empty := (history.History{}); lengthen(&empty) || lengthen(&busy) {
				t.Error("a history was changed that leaves no time for a breach")
			}
		})
	}
	for rule := range bounds().Promised {
		if allowed[rule] == nil && rule != "call" { // It is a rule about single calls.
			t.Errorf("rule %s has no delay", rule)
		}
	}
}
