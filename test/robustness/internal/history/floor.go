package history

import (
	"fmt"
	"time"
)

// Floor is the traffic without which a step shows nothing.
type Floor struct {
	// Over is the time before the first fault of the step in which the traffic is counted.
	Over time.Duration
	// Pods, Services, Renewals and Answers are numbers of changes, and of answers of the gateway.
	Pods, Services, Renewals, Answers int
}

// BelowFloor says which traffic before a step was below the floor; nothing if none was.
func (h History) BelowFloor(step int, floor Floor) []string {
	return h.TrafficBelow(floor, h.beginOf(step))
}

// TrafficBelow says which traffic before a time was below the floor.
func (h History) TrafficBelow(floor Floor, to time.Duration) []string {
	var below []string
	from := max(0, to-floor.Over)
	within := func(at time.Duration) int {
		if from <= at && at < to {
			return 1
		}
		return 0
	}
	var pods, services, renewals, answers int
	for _, p := range h.Pods {
		pods += within(p.At)
	}
	for _, s := range h.Services {
		services += within(s.At)
	}
	for _, r := range h.Renewals {
		renewals += within(r.At)
	}
	for _, a := range h.Answers {
		if a.Failed == "" {
			answers += within(a.Answered)
		}
	}
	for _, count := range []struct {
		what     string
		got, min int
	}{
		{"changes of Pods", pods, floor.Pods}, {"changes of Services", services, floor.Services},
		{"renewals of Leases", renewals, floor.Renewals}, {"answers of the gateway", answers, floor.Answers},
	} {
		if count.got < count.min {
			below = append(below, fmt.Sprintf("%d %s in the %v before it, want %d", count.got, count.what, floor.Over, count.min))
		}
	}
	return below
}

// beginOf returns the time of the first fault of a step.
func (h History) beginOf(step int) time.Duration {
	begin := h.End
	for _, w := range h.Windows {
		if w.Fault != "" && w.Step == step {
			begin = min(begin, w.From)
		}
	}
	return begin
}
