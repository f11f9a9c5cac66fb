package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// Violation is one breach of a rule.
type Violation struct {
	Rule, Service string
	At            time.Duration
	// Step is the step of the schedule whose faults preceded it, or -1.
	Step int
	Text string
}

func (v Violation) String() string {
	return fmt.Sprintf("%v %s %s: %s", v.At.Round(time.Millisecond), v.Service, v.Rule, v.Text)
}

// Measure is the longest time in one step for which a rule with a bound did not hold, by the clock.
type Measure struct {
	Rule, Service string
	Step          int
	// Stalled is the part of Took in which the machine did not run the world.
	Took, Stalled, Bound time.Duration
	What                 string
}

// Bounds are the times that the rules allow.
type Bounds struct {
	// Promised are the times by rule. Margin is what a loaded machine may need in addition.
	Promised map[string]time.Duration
	Margin   time.Duration
	// Observation is what the rule "dead" allows for changes of the leader.
	Observation Observation
}

// Report is the result of Check.
type Report struct {
	// Violations are ordered by time. Undecided are breaches for which the machine may account: in
	// the time in which it ran the processes, the rule held.
	Violations, Undecided []Violation
	// Measures has one entry for each rule, service and step with a lag.
	Measures []Measure
	// Traffic counts what the rules judged, by rule, and not what they excused.
	Traffic map[string]int
}

// finding collects what one rule finds.
type finding struct {
	lags                  []history.Lag
	violations, undecided []Violation
	traffic               map[string]int
	// observation is that of the Bounds.
	observation Observation
}

func (f *finding) breach(rule, service string, at time.Duration, format string, args ...any) {
	f.found(false, rule, service, at, format, args...)
}

// found adds a violation, or an undecided breach if the machine may have caused it.
func (f *finding) found(machine bool, rule, service string, at time.Duration, format string, args ...any) {
	to := &f.violations
	if machine {
		to = &f.undecided
	}
	*to = append(*to, Violation{Rule: rule, Service: service, At: at, Text: fmt.Sprintf(format, args...)})
}

func (f *finding) lag(rule, service string, from, to time.Duration, what string) {
	if to > from {
		f.lags = append(f.lags, history.Lag{Rule: rule, Service: service, What: what, From: from, To: to})
	}
}

// whole adds a lag that only an excuse divides.
func (f *finding) whole(rule, service string, from, to time.Duration, what string) {
	if to > from {
		f.lags = append(f.lags, history.Lag{Rule: rule, Service: service, What: what, From: from, To: to, Whole: true})
	}
}

func (f *finding) count(rule string, n int) { f.traffic[rule] += n }

// judge is a function that finds the breaches of some rules.
type judge struct {
	rules string
	find  func(history.History, *finding)
}

func judges(bounds Bounds) []judge {
	return []judge{
		{"holder", holders}, {"single", single}, {"act", acts}, {"stale", stale}, {"living dead", nodes}, {"lease regress", leases},
		{"present absent duplicate", pods}, {"simple-reader", simpleReaders}, {"empty published unpublished", servers}, {"unallocated shared", allocations},
		{"foreign", foreign}, {"answer silence", answers}, {"lost", mutations}, {"told", readings}, {"level", levels}, {"labelled", labels},
		{"call", func(h history.History, f *finding) { calls(h, bounds, f) }},
	}
}

// Rule is one promise that the oracle judges.
type Rule struct {
	Name, Service string
	// Promise says what holds: always, or not for longer than the bound of the rule.
	Promise string
}

// Rules returns all rules, by service.
func Rules() []Rule {
	const each = "each"
	return []Rule{
		{"holder", each, "a shard has a leader that runs"},
		{"single", each, "a term of a shard begins after the end of the former one"},
		{"act", each, "a write to Kubernetes is sent while its process leads the shard of the object"},
		{"stale", each, "no term writes over the write of a later term"},
		{"foreign", each, "an object of another program does not change"},
		{"level", each, "memory, goroutines, open files, lost records and crashes are within limits"},
		{"living", history.Leasesvc, "a Node that lives is not marked Unknown"},
		{"dead", history.Leasesvc, "a Node that is dead is marked Unknown. The bound is longer by the time without a leader that can observe the Node"},
		{"lease", history.Leasesvc, "the Lease of a Node with an agent has not lapsed"},
		{"regress", history.Leasesvc, "the renewTime of a Lease that leasesvc writes does not go back"},
		{"unallocated", history.Bootstrapsvc, "an address or port that a Service uses is allocated"},
		{"shared", history.Bootstrapsvc, "two Services do not use one address or port"},
		{"empty", history.Bootstrapsvc, "default/kubernetes has an endpoint"},
		{"published", history.Bootstrapsvc, "the endpoint of a dead kube-apiserver is not published"},
		{"unpublished", history.Bootstrapsvc, "the endpoint of a running kube-apiserver is published"},
		{"lost", history.Bootstrapsvc, "an accepted change of an ignore mark is in etcd, and no other change is"},
		{"present", history.Slicesvc, "a Pod that is gone or unready is no ready endpoint"},
		{"absent", history.Slicesvc, "a ready Pod is a ready endpoint"},
		{"duplicate", history.Slicesvc, "an address is in one EndpointSlice of a Service"},
		{"simple-reader", history.Slicesvc, "a client that applies each event of an EndpointSlice alone, as Linkerd does, knows every ready endpoint"},
		{"answer", history.Gateway, "a leader that the gateway names leads, unless the answer says that the shard is missing"},
		{"labelled", history.Gateway, "an answer lacks a shard whose leader does not run, and says so"},
		{"told", history.Gateway, "a list of Nodes, EndpointSlices or findings is not older than it says, but for shards that it lacks"},
		{"silence", history.Gateway, "the gateway answers a list of shards"},
		{"call", history.Gateway, "a call with Trivet's retries succeeds, but during a fault that clients may notice and shortly after"},
	}
}

// Check judges a history by some rules, or by all if none is named. A rule with a lag and without a
// bound is a mistake of the caller, and gives a violation.
func Check(h history.History, bounds Bounds, only ...string) Report {
	f := &finding{traffic: map[string]int{}, observation: bounds.Observation}
	h.Acts = asSent(h)
	for _, j := range judges(bounds) {
		if len(only) == 0 || slices.ContainsFunc(strings.Fields(j.rules), func(rule string) bool { return slices.Contains(only, rule) }) {
			j.find(h, f)
		}
	}
	report := Report{Traffic: f.traffic}
	worst := map[Measure]Measure{} // by rule, service and step
	for _, lag := range f.lags {
		bound, known := bounds.Promised[lag.Rule]
		longest, net := h.Unexcused(lag)
		if longest.Took <= 0 {
			continue
		}
		limit := bound + bounds.Margin
		part, machine := net, known && net.Net() <= limit
		if machine {
			part = longest
		}
		if longest.Took > limit || !known {
			f.found(machine, lag.Rule, lag.Service, part.At, "%s: from %v to %v, %v of that without a fault, of which the machine may account for %v; the bound is %v",
				lag.What, lag.From.Round(time.Millisecond), lag.To.Round(time.Millisecond), part.Took.Round(time.Millisecond),
				part.Stalled.Round(time.Millisecond), bound)
		}
		key := Measure{Rule: lag.Rule, Service: lag.Service, Step: h.StepAt(longest.At)}
		if longest.Took > worst[key].Took {
			worst[key] = Measure{
				Rule: lag.Rule, Service: lag.Service, Step: key.Step, Took: longest.Took, Stalled: longest.Stalled, Bound: bound, What: lag.What,
			}
		}
	}
	for _, m := range worst {
		report.Measures = append(report.Measures, m)
	}
	slices.SortFunc(report.Measures, func(a, b Measure) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Rule, b.Rule))
	})
	report.Violations, report.Undecided = ordered(h, f.violations), ordered(h, f.undecided)
	return report
}

// ordered returns those of the time of the run, by time, each with its step.
func ordered(h history.History, all []Violation) []Violation {
	var within []Violation
	for _, v := range all {
		if v.At >= h.Begin && v.At <= h.End {
			v.Step = h.StepAt(v.At)
			within = append(within, v)
		}
	}
	slices.SortStableFunc(within, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return within
}

// until returns the end of a time that may last to the end of the history.
func until(h history.History, to time.Duration) time.Duration {
	if to == 0 {
		return h.End
	}
	return to
}
