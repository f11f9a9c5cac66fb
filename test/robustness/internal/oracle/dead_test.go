package oracle

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

func TestMarkedBy_AddsUpWhatLeadersObserve(t *testing.T) {
	o := Observation{Grace: 20 * s, Least: 7 * s, Quiet: 5 * s, Unstored: 3 * s, Stopped: s}
	term := func(process string, epoch int64, from, to time.Duration) history.Claim {
		return history.Claim{Service: history.Leasesvc, Holder: process, Epoch: epoch, From: from, To: to}
	}
	for name, c := range map[string]struct {
		claims  []history.Claim
		downs   []history.Down
		windows []history.Window
		kubelet bool
		want    time.Duration
	}{
		"one leader":                         {claims: []history.Claim{term("a", 1, 0, 0)}, want: 30 * s},
		"a change before much was observed":  {claims: []history.Claim{term("a", 1, 0, 17*s), term("b", 2, 18*s, 0)}, want: 38 * s},
		"a change with a part observed":      {claims: []history.Claim{term("a", 1, 0, 20*s), term("b", 2, 22*s, 0)}, want: 35 * s},
		"a change just before the end":       {claims: []history.Claim{term("a", 1, 0, 30*s), term("b", 2, 31*s, 0)}, want: 38 * s},
		"two changes":                        {claims: []history.Claim{term("a", 1, 0, 20*s), term("b", 2, 21*s, 30*s), term("a", 3, 31*s, 0)}, want: 38 * s},
		"a leader too short to observe much": {claims: []history.Claim{term("a", 1, 0, 20*s), term("b", 2, 21*s, 22*s), term("a", 3, 23*s, 0)}, want: 36 * s},
		"no leader for long enough":          {claims: []history.Claim{term("a", 1, 0, 15*s), term("b", 2, 16*s, 30*s), term("c", 3, 31*s, 35*s)}, want: 60 * s},
		"a leader that is frozen observes nothing": {
			claims: []history.Claim{term("a", 1, 0, 25*s), term("b", 2, 25*s, 0)}, downs: []history.Down{{Process: "a", From: 20 * s}}, want: 38 * s,
		},
		"a leader that hears nothing observes nothing": {
			claims: []history.Claim{term("a", 1, 0, 0)}, windows: []history.Window{{Fault: "cut", Unreached: "a", From: 9 * s, To: 25 * s}}, want: 45 * s,
		},
		"a leader reads Leases while it hears nothing": {
			claims: []history.Claim{term("a", 1, 0, 0)}, windows: []history.Window{{Fault: "cut", Unreached: "a", From: 9 * s, To: 25 * s}}, kubelet: true, want: 30 * s,
		},
		"another process that hears nothing delays no mark": {
			claims: []history.Claim{term("a", 1, 0, 0)}, windows: []history.Window{{Fault: "cut", Unreached: "b", From: 9 * s, To: 25 * s}}, want: 30 * s,
		},
		"a leader stops while etcd has no quorum, and its key stays": {
			claims:  []history.Claim{term("a", 1, 0, 32*s), term("b", 2, 32*s, 43*s), term("c", 3, 43*s, 0)},
			windows: []history.Window{{Fault: "etcd stopped", NoQuorum: true, From: 12 * s, To: 32 * s}}, kubelet: true, want: 55 * s,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := history.History{End: 60 * s, Shards: map[string]int{history.Leasesvc: 1}, Claims: c.claims, Downs: c.downs, Windows: c.windows}
			if got := o.markedBy(h, history.Life{Node: "n", Kubelet: c.kubelet, To: 10 * s}); got != c.want {
				t.Errorf("markedBy = %v, want %v", got, c.want)
			}
		})
	}
}
