package nodehealth_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// writer writes the Lease of a node.
type writer struct {
	every, lasts time.Duration
	// echo says that leasesvc writes it here, for the session, so its renewals are no sign of life.
	echo bool
	// ours says that the Leases tell that leasesvc wrote them, as those of all replicas do.
	ours bool
}

func writers() map[string]writer {
	return map[string]writer{
		"kubelet":               {every: 10 * time.Second, lasts: 40 * time.Second},
		"mirror, here":          {every: 10 * time.Second, lasts: 40 * time.Second, echo: true},
		"mirror, any replica":   {every: 10 * time.Second, lasts: 40 * time.Second, ours: true},
		"relaxed, here":         {every: 24 * time.Second, lasts: 40 * time.Second, echo: true},
		"relaxed, any replica":  {every: 24 * time.Second, lasts: 40 * time.Second, ours: true},
		"on-change, here":       {every: 300 * time.Second, lasts: 500 * time.Second, echo: true},
		"on-change, any of us":  {every: 300 * time.Second, lasts: 500 * time.Second, ours: true},
		"another, for a year":   {every: 10 * time.Second, lasts: 365 * 24 * time.Hour},
		"none":                  {},
		"on-change, for a year": {every: 300 * time.Second, lasts: 365 * 24 * time.Hour, echo: true},
	}
}

// The writer of a Lease and the state of the session decide together how long a silence may last.
// Each case has a node that lives for a while and stops. It says when the node is marked Unknown,
// counted from then. An expired session ends the grace period, unless the kubelet renews the Lease
// itself. A session that ended without expiring leaves a full grace period. A session that goes on
// keeps its node alive, unless only its agent is known to live and the kubelet stopped to renew.
// The duration in the Lease changes nothing here: no agent says that its kubelet is silent.
func TestPlan_WriterOfTheLeaseAndStateOfTheSession(t *testing.T) {
	const (
		never = 10 * time.Minute
		grace = 50 * time.Second
		ttl   = 20 * time.Second
	)
	// The last renewal is ten seconds before the node stops, or one interval of the writer.
	lastRenewal := func(w writer) time.Duration { return min(10*time.Second, w.every) }
	for _, c := range []struct {
		name string
		// elsewhere says that another replica has the session until the node stops.
		elsewhere bool
		// end ends the session. It is called when the node stops.
		end func(*fixture)
		// later is the state of the session after a while.
		after time.Duration
		then  func(*fixture)
		want  func(writer) time.Duration
	}{
		{
			name: "a session that goes on, and only its agent is known to live",
			end:  func(*fixture) {},
			want: func(w writer) time.Duration {
				if w.echo || w.ours || w.every == 0 {
					return never // nothing contradicts what the beats say by contract
				}
				return grace - lastRenewal(w)
			},
		},
		{
			name: "a session that goes on, and its agent observes the kubelet",
			end:  func(w *fixture) { w.observes["n0"] = true },
			want: func(writer) time.Duration { return never },
		},
		{
			name:  "a session that expires",
			end:   func(w *fixture) { w.sessions["n0"] = session.Suspect },
			after: ttl, then: func(w *fixture) { w.sessions["n0"] = session.Expired },
			want: func(writer) time.Duration {
				return ttl // what came before the last beat proves no more than it
			},
		},
		{
			name: "a session that is released",
			end:  func(w *fixture) { delete(w.sessions, "n0") },
			want: func(writer) time.Duration { return grace },
		},
		{
			name: "a shard that was elsewhere", elsewhere: true,
			end:   func(*fixture) {},
			after: 12 * time.Second, then: func(w *fixture) { w.ownership["n0"] = nodehealth.Ownership{Held: true, HeldSince: w.now} },
			want: func(writer) time.Duration { return 12*time.Second + grace },
		},
		{
			name: "a shard that was elsewhere, whose holder knew of the silence", elsewhere: true,
			end:   func(*fixture) {},
			after: 40 * time.Second, then: func(w *fixture) {
				w.ownership["n0"], w.sessions["n0"] = nodehealth.Ownership{Held: true, HeldSince: w.now}, session.Expired
			},
			want: func(writer) time.Duration { return 60 * time.Second }, // a first beat here would have come by then
		},
	} {
		for who, writes := range writers() {
			t.Run(c.name+"/"+who, func(t *testing.T) {
				w := newFixture(t, 2)
				w.sessions["n0"], w.sessions["n1"], w.modes["n1"] = session.Alive, session.Alive, "endpoint"
				if c.elsewhere {
					delete(w.sessions, "n0")
					w.ownership["n0"] = nodehealth.Ownership{}
				}
				w.live(writes, 20*time.Minute-lastRenewal(writes))
				if writes.every > 0 {
					w.write(writes)
				} else {
					delete(w.leases, "n0")
				}
				w.rest(lastRenewal(writes))
				stopped := w.now
				c.end(w)
				if c.then != nil {
					w.rest(c.after)
					c.then(w)
				}
				want := c.want(writes)
				if want == never {
					w.rest(never)
					w.expectReady("n0", corev1.ConditionTrue)
					return
				}
				w.rest(want - w.now.Sub(stopped))
				w.expectReady("n0", corev1.ConditionTrue)
				w.rest(400 * time.Millisecond)
				w.expectReady("n0", corev1.ConditionUnknown)
				w.expectReady("n1", corev1.ConditionTrue)
			})
		}
	}
}

// live has the Lease of n0 written for a while, in steps of one interval of the writer.
func (w *fixture) live(by writer, d time.Duration) {
	for end := w.now.Add(d); w.now < end; {
		if by.every > 0 {
			w.write(by)
		}
		w.now = min(end, w.now.Add(max(by.every, 10*time.Second)))
		w.pass()
	}
}

func (w *fixture) write(by writer) {
	w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: by.lasts, RenewedByUs: by.ours}
	if by.echo {
		w.written["n0"] = w.leases["n0"].Version
	}
	w.observe()
}

// rest lets time pass, with a pass every 100 ms.
func (w *fixture) rest(d time.Duration) {
	for end := w.now.Add(d); w.now < end; {
		w.now = min(end, w.now.Add(100*time.Millisecond))
		w.pass()
	}
}

// Wall-clock time is written and never compared, so clocks of this process and of kubelets may be
// stepped.
func TestPlan_SteppedClocksDecideNothing(t *testing.T) {
	for name, jump := range map[string]time.Duration{"an hour ahead": time.Hour, "an hour back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 3)
			plan := func(wallOff time.Duration) nodehealth.Plan {
				p, cluster := w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: wall(w.now).Add(wallOff)}, w.cluster, w.observe(),
					nodehealth.Authority{MaxSteps: 10, HoldsZones: true})
				if p.SelfCheck != nil {
					cluster = cluster.CheckPassed(w.now, w.now)
				}
				w.cluster = cluster
				return p
			}
			swing := func(every time.Duration) time.Duration { // there and back again
				if w.now.Sub(0)/every%2 == 0 {
					return 0
				}
				return jump
			}
			for range 490 { // n1 renews by a clock that jumps, n2 by a good one, n0 not at all
				w.now = w.now.Add(100 * time.Millisecond)
				if w.now.Sub(0)%(10*time.Second) == 0 {
					w.renew("n1", swing(10*time.Second))
					w.renew("n2", 0)
				}
				if p := plan(swing(time.Second)); p.Steps != nil {
					t.Fatalf("at %v: %v", w.now.Sub(0), p.Steps)
				}
			}
			w.now = w.now.Add(1200 * time.Millisecond)
			p := plan(jump)
			if len(p.Steps) != 1 || p.Steps[0].Node.Name != "n0" || p.Steps[0].Kind != nodehealth.MarkUnknown {
				t.Errorf("steps %v, want n0 declared", p.Steps)
			}
		})
	}
}
