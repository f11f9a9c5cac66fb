package history

import (
	"testing"
	"time"
)

const s = time.Second

func TestUnexcused_IsTheLongestPartWithoutAFault(t *testing.T) {
	for name, c := range map[string]struct {
		lag        Lag
		windows    []Window
		longest    time.Duration
		at         time.Duration
		begin, end time.Duration
	}{
		"no fault":                    {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, longest: 7 * s, at: 9 * s},
		"before the begin":            {lag: Lag{From: 2 * s, To: 9 * s}, begin: 5 * s, end: 60 * s, longest: 4 * s, at: 9 * s},
		"after the end":               {lag: Lag{From: 2 * s, To: 90 * s}, end: 10 * s, longest: 8 * s, at: 10 * s},
		"a fault restarts the bound":  {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", From: 4 * s, To: 30 * s}}, longest: 5 * s, at: 9 * s},
		"the end of a fault does not": {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", From: 3 * s, To: 6 * s}}, longest: 6 * s, at: 9 * s},
		"but not of a whole lag":      {lag: Lag{From: 2 * s, To: 9 * s, Whole: true}, end: 60 * s, windows: []Window{{Fault: "f", From: 3 * s, To: 6 * s}}, longest: 7 * s, at: 9 * s},
		"an excuse divides it":        {lag: Lag{From: 2 * s, To: 9 * s, Whole: true}, end: 60 * s, windows: []Window{{Fault: "f", From: 3 * s, To: 6 * s, Excused: 6 * s}}, longest: 3 * s, at: 9 * s},
		"a fault around it does not":  {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", From: 1 * s, To: 30 * s}}, longest: 7 * s, at: 9 * s},
		"an excuse is left out":       {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", From: 1 * s, To: 6 * s, Excused: 6 * s}}, longest: 3 * s, at: 9 * s},
		"an excuse to the end":        {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", From: 3 * s, To: 20 * s, Excused: 20 * s}}, longest: 1 * s, at: 3 * s},
		"a fault is noticed first":    {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", From: 2 * s, To: 20 * s, Excused: 5 * s}}, longest: 4 * s, at: 9 * s},
		"a stall is subtracted":       {lag: Lag{From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{From: 4 * s, To: 5 * s}}, longest: 6 * s, at: 9 * s},
		"fault of another service":    {lag: Lag{Service: Leasesvc, From: 2 * s, To: 9 * s}, end: 60 * s, windows: []Window{{Fault: "f", Service: Slicesvc, From: 3 * s, To: 20 * s, Excused: 20 * s}}, longest: 7 * s, at: 9 * s},
	} {
		t.Run(name, func(t *testing.T) {
			h := History{Begin: c.begin, End: c.end, Windows: c.windows}
			if _, got := h.Unexcused(c.lag); got.Net() != c.longest || got.At != c.at {
				t.Errorf("Unexcused = %+v, want %v at %v", got, c.longest, c.at)
			}
		})
	}
}

func TestUnexcused_ARuleThatAFaultShowsHasNoExcuse(t *testing.T) {
	h := History{End: 60 * s, Windows: []Window{{Fault: "f", From: 2 * s, To: 20 * s, Excused: 12 * s, Shows: []string{"published"}}}}
	if longest, _ := h.Unexcused(Lag{Rule: "published", From: 2 * s, To: 20 * s}); longest.Took != 18*s {
		t.Errorf("the fault's own rule: %v, want 18s", longest.Took)
	}
	if longest, _ := h.Unexcused(Lag{Rule: "present", From: 2 * s, To: 20 * s}); longest.Took != 8*s {
		t.Errorf("another rule: %v, want 8s", longest.Took)
	}
}

// The part that took the longest need not be the one with the most time without stalls.
func TestUnexcused_ReportsTheLongestPartToo(t *testing.T) {
	h := History{End: 60 * s, Windows: []Window{{Fault: "f", From: 9 * s, To: 9 * s}, {From: 2 * s, To: 7 * s}}}
	longest, net := h.Unexcused(Lag{From: 2 * s, To: 14 * s})
	if longest.Took != 7*s || longest.Stalled != 5*s || net.Took != 5*s || net.Stalled != 0 {
		t.Errorf("longest %+v, net %+v; want 7s with 5s stalled, and 5s", longest, net)
	}
}

func TestMostStalled_IsThatOfTheWorstPart(t *testing.T) {
	const s = time.Second
	h := History{Windows: []Window{{From: 2 * s, To: 3 * s}, {From: 5 * s, To: 8 * s}, {Fault: "f", From: 9 * s, To: 20 * s}, {From: 21 * s, To: 22 * s}}}
	for _, c := range []struct{ from, to, length, want time.Duration }{
		{0, 30 * s, 6 * s, 4 * s}, {0, 30 * s, 2 * s, 2 * s}, {0, 6 * s, 3 * s, 1 * s}, {8 * s, 30 * s, 6 * s, 1 * s}, {9 * s, 20 * s, 5 * s, 0},
		{6 * s, 30 * s, 6 * s, 2 * s}, {0, 4 * s, 6 * s, 1 * s},
	} {
		if got := h.MostStalled(c.from, c.to, c.length); got != c.want {
			t.Errorf("from %v to %v, in %v: %v, want %v", c.from, c.to, c.length, got, c.want)
		}
	}
}
