package oracle

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// A failed call is a violation unless a fault that a client may notice was near.
func TestCalls_OnlyFaultsThatAClientMayNoticeExcuse(t *testing.T) {
	call := history.Call{Method: "Get", Target: history.Gateway, From: 20 * s, To: 21 * s, Failed: "UNAVAILABLE"}
	for name, c := range map[string]struct {
		windows []history.Window
		failed  string
		to      time.Duration // 0 is 21 s
		breach  bool
	}{
		"no fault":           {failed: "UNAVAILABLE", breach: true},
		"a success":          {},
		"a graceful fault":   {failed: "UNAVAILABLE", breach: true, windows: []history.Window{{Fault: "f", Graceful: true, From: 15 * s, To: 30 * s}}},
		"another fault":      {failed: "UNAVAILABLE", windows: []history.Window{{Fault: "f", From: 15 * s, To: 30 * s}}},
		"another one beside": {failed: "UNAVAILABLE", windows: []history.Window{{Fault: "g", Graceful: true, From: 15 * s, To: 30 * s}, {Fault: "f", From: 18 * s, To: 18 * s}}},
		"soon after a fault": {failed: "UNAVAILABLE", windows: []history.Window{{Fault: "f", From: 12 * s, To: 15 * s}}},
		"long after a fault": {failed: "UNAVAILABLE", breach: true, windows: []history.Window{{Fault: "f", From: 12 * s, To: 13 * s}}},
		"a short stall":      {failed: "UNAVAILABLE", breach: true, windows: []history.Window{{From: 19 * s, To: 21 * s}}},
		"a long stall":       {failed: "UNAVAILABLE", windows: []history.Window{{From: 15 * s, To: 30 * s}}},
		"a hang between short stalls": {failed: "DEADLINE_EXCEEDED", to: 35 * s, breach: true, windows: []history.Window{
			{From: 15 * s, To: 16 * s}, {From: 19 * s, To: 20 * s}, {From: 23 * s, To: 24 * s}, {From: 27 * s, To: 28 * s}, {From: 31 * s, To: 32 * s},
		}},
		"a hang around a long stall": {failed: "DEADLINE_EXCEEDED", to: 35 * s, windows: []history.Window{{From: 27 * s, To: 31 * s}}},
		"before a later fault":       {failed: "UNAVAILABLE", breach: true, windows: []history.Window{{Fault: "f", From: 22 * s, To: 30 * s}}},
	} {
		t.Run(name, func(t *testing.T) {
			call.Failed, call.To = c.failed, cmp.Or(c.to, 21*s)
			report := Check(history.History{Begin: s, End: 60 * s, Windows: c.windows, Calls: []history.Call{call}},
				Bounds{Promised: map[string]time.Duration{"call": 6 * s}})
			if got := len(report.Violations) > 0; got != c.breach {
				t.Errorf("violations are %v, want some: %t", report.Violations, c.breach)
			}
		})
	}
}

// An answer must be partial from the moment that a leader stops to run until its claim ends.
func TestLabels_PartialWhileALeaderDoesNotRun(t *testing.T) {
	h := history.History{
		Begin: s, End: 60 * s,
		Downs:  []history.Down{{Process: "a", From: 20 * s, To: 28 * s}},
		Claims: []history.Claim{{Service: history.Slicesvc, Holder: "a", From: 2 * s, To: 25 * s}, {Service: history.Slicesvc, Shard: 1, Holder: "b", From: 2 * s}},
	}
	for asked, want := range map[time.Duration]bool{19 * s: false, 21 * s: true, 24 * s: false, 26 * s: false} {
		h.Answers = []history.Answer{{Asked: asked, Answered: asked + s}}
		breach := slices.ContainsFunc(Check(h, Bounds{}).Violations, func(v Violation) bool { return v.Rule == "labelled" })
		if breach != want {
			t.Errorf("a complete answer asked for at %v is a violation: %t, want %t", asked, breach, want)
		}
		stalled := h
		stalled.Windows = []history.Window{{From: 20 * s, To: 22 * s}} // Threads may not have seen the signal.
		if report := Check(stalled, Bounds{}); want && (len(report.Violations) > 0 || len(report.Undecided) == 0) {
			t.Errorf("during a stall: violations %v, undecided %v; want it undecided", report.Violations, report.Undecided)
		}
		h.Answers[0].Partial = map[string]bool{history.Slicesvc: true}
		if report := Check(h, Bounds{}); slices.ContainsFunc(report.Violations, func(v Violation) bool { return v.Rule == "labelled" }) {
			t.Errorf("a partial answer asked for at %v: %v", asked, report.Violations)
		}
	}
}

// A slice that was written after its Service ended, as by a replica whose watch is late, may be
// listed until the bound: it is no version that never was.
func TestReadings_ASliceWrittenAfterTheEndOfItsServiceIsLate(t *testing.T) {
	h := history.History{
		Begin: s, End: 60 * s, Shards: map[string]int{history.Slicesvc: 1},
		Services: []history.ServiceVersion{{Revision: 5, At: 2 * s, Name: "demo/web"}, {Revision: 7, At: 20 * s, Name: "demo/web", Gone: true}},
		Slices: []history.SliceVersion{
			{Revision: 6, At: 3 * s, Name: "demo/web-1", Service: "demo/web"}, {Revision: 8, At: 21 * s, Name: "demo/web-1", Service: "demo/web"},
		},
	}
	bounds := Bounds{Promised: map[string]time.Duration{"told": 4 * s}}
	for asked, breach := range map[time.Duration]bool{22 * s: false, 30 * s: true} {
		h.Readings = []history.Reading{{Asked: asked, Answered: asked + s, Kind: history.SlicesRead, Service: history.Slicesvc, Objects: map[string]string{"demo/web-1": "8"}}}
		if report := Check(h, bounds, "told"); (len(report.Violations) > 0) != breach {
			t.Errorf("listed after a question at %v: violations %v, want some: %t", asked, report.Violations, breach)
		}
	}
}
