package history

import (
	"slices"
	"time"
)

// Lag is a time in which something was not as promised. A promise allows it for a bound.
type Lag struct {
	// Rule names the promise, Service the service that makes it.
	Rule, Service string
	// What describes the subject.
	What     string
	From, To time.Duration
	// Whole says that no begin of a fault divides it, except of one that excuses.
	Whole bool
}

// Part is a part of a lag: how long it took, for how long of that the machine did not run the
// world, and when it ended.
type Part struct{ Took, Stalled, At time.Duration }

// Net is the time without the stalls.
func (p Part) Net() time.Duration { return p.Took - p.Stalled }

// Unexcused returns the longest part of a lag for which no fault accounts, and the one whose time
// without stalls is the longest. A part begins and ends with the lag, with the begin of a fault
// that clients may notice, or where a fault ceases to excuse the rule. Only faults that excuse
// divide a Whole lag. No part is inside of a fault that excuses its rule.
func (h History) Unexcused(lag Lag) (longest, net Part) {
	from, to := max(lag.From, h.Begin), min(lag.To, h.End)
	faults := h.faultsOf(lag.Service)
	moments := []time.Duration{from, to}
	for _, w := range faults {
		if (lag.Whole || w.Graceful) && w.excused(lag.Rule) == 0 {
			continue
		}
		moments = append(moments, w.From, w.excused(lag.Rule))
	}
	slices.Sort(moments)
	for i := range len(moments) - 1 {
		begin, end := moments[i], moments[i+1]
		if begin < from || end > to || slices.ContainsFunc(faults, func(w Window) bool { return w.From <= begin && end <= w.excused(lag.Rule) }) {
			continue
		}
		part := Part{Took: end - begin, Stalled: h.Stalled(begin, end), At: end}
		if part.Took > longest.Took {
			longest = part
		}
		if part.Net() > net.Net() {
			net = part
		}
	}
	return longest, net
}

// excused returns the time before which a fault excuses a rule, or 0.
func (w Window) excused(rule string) time.Duration {
	if slices.Contains(w.Shows, rule) {
		return 0
	}
	return w.Excused
}

// Stalled returns for how long the machine did not run the world in a time.
func (h History) Stalled(from, to time.Duration) time.Duration {
	return h.during(from, to, func(w *Window) bool { return w.Fault == "" })
}

// WithoutQuorum returns for how long etcd had no quorum in a time.
func (h History) WithoutQuorum(from, to time.Duration) time.Duration {
	return h.during(from, to, func(w *Window) bool { return w.NoQuorum })
}

// during returns the part of a time in which there are some windows. These do not overlap.
func (h History) during(from, to time.Duration, some func(*Window) bool) time.Duration {
	var sum time.Duration
	for i := range h.Windows {
		if w := &h.Windows[i]; some(w) && w.From < to && w.To > from {
			sum += max(0, min(w.To, to)-max(w.From, from))
		}
	}
	return sum
}

// MostStalled returns for how long the machine did not run the world in the worst part, of a
// length, of a time.
func (h History) MostStalled(from, to, length time.Duration) time.Duration {
	worst := h.Stalled(from, min(to, from+length))
	for i := range h.Windows {
		w := &h.Windows[i]
		if w.Fault != "" || w.To < from || w.From > to {
			continue
		}
		// The worst part begins with a stall, or ends with one.
		for _, begin := range []time.Duration{w.From, w.To - length} {
			if from <= begin && begin < to {
				worst = max(worst, h.Stalled(begin, min(to, begin+length)))
			}
		}
	}
	return worst
}

// faultsOf returns the faults that concern a service.
func (h History) faultsOf(service string) []Window {
	var faults []Window
	for i := range h.Windows {
		if w := &h.Windows[i]; w.Fault != "" && (w.Service == "" || service == "" || w.Service == service) {
			faults = append(faults, *w)
		}
	}
	return faults
}

// StepAt returns the last step whose first fault began before a time, or -1 before the first one.
func (h History) StepAt(at time.Duration) int {
	step := -1
	for i := range h.Windows {
		if w := &h.Windows[i]; w.Fault != "" && w.From < at {
			step = max(step, w.Step)
		}
	}
	return step
}

// FaultsOf returns the names of the faults of a step, sorted.
func (h History) FaultsOf(step int) []string {
	var names []string
	for _, w := range h.Windows {
		if w.Fault != "" && w.Step == step && !slices.Contains(names, w.Fault) {
			names = append(names, w.Fault)
		}
	}
	slices.Sort(names)
	return names
}
