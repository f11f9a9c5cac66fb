package oracle

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// calls finds calls that failed, although no fault disturbed them. A fault that a client must not
// notice excuses nothing. Other faults excuse until the bound after their end. A machine that did
// not run the services for half of the time of a takeover ends terms as a fault does. Short stalls
// that add up to that in a longer time end none, so they cast no doubt on a call that hangs.
func calls(h history.History, bounds Bounds, f *finding) {
	takeover := bounds.Promised["call"]
	for _, c := range h.Calls {
		if slices.ContainsFunc(h.Windows, func(w history.Window) bool {
			return w.Fault != "" && !w.Graceful && w.From <= c.To && c.From <= w.To+takeover+bounds.Margin
		}) {
			continue
		}
		f.count("call", 1)
		if c.Failed == "" {
			continue
		}
		f.found(2*h.MostStalled(c.From-takeover, c.To, takeover) > takeover, "call", history.Gateway, c.To, "%s of %s, begun at %v: %s", c.Method, c.Target, c.From.Round(time.Millisecond), c.Failed)
	}
}

// levels finds quantities out of their limits.
func levels(h history.History, f *finding) {
	for _, l := range h.Levels {
		f.count("level", 1)
		if l.Value < l.Least || l.Value > l.Most {
			f.breach("level", l.Service, l.At, "%s: %s is %g, want %g to %g", l.Process, l.What, l.Value, l.Least, l.Most)
		}
	}
}

// signalled is longer than a signal needs to stop a process.
const signalled = 100 * time.Millisecond

// labels finds answers that hide that a leader does not run. A process leads until its claim ends,
// also while it does not run.
func labels(h history.History, f *finding) {
	for _, d := range h.Downs {
		for _, c := range h.Claims {
			from, to := max(c.From, d.From)+signalled, min(until(h, c.To), until(h, d.To))-slack
			if c.Holder != d.Process || from >= to {
				continue
			}
			for _, a := range h.Answers {
				if a.Failed != "" || a.Asked < from || a.Answered > to {
					continue
				}
				f.count("labelled", 1)
				if !a.Lacks(c.Service, c.Shard) {
					// A thread that waits for a processor has not seen the signal.
					unseen := a.Asked-d.From-h.Stalled(d.From-slack, a.Asked+slack) < signalled
					f.found(unseen, "labelled", history.Gateway, a.Answered, "an answer to a question at %v lacks nothing of %s, whose leader %s of shard %d does not run",
						a.Asked.Round(time.Millisecond), c.Service, c.Holder, c.Shard)
				}
			}
		}
	}
}
