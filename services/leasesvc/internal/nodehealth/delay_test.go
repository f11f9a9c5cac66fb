package nodehealth_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Each row of the table delays the mark of n0, whose last beat was 20 s before the others end. The
// assessment names the row and its end, and n0 is marked when that is over.
func TestAssess_EachRowOfTheTableDelaysAMark(t *testing.T) {
	const start = monotonic.Instant(5*time.Minute + 1)
	at := func(seconds float64) monotonic.Instant {
		return start.Add(time.Duration(seconds * float64(time.Second)))
	}
	for name, c := range map[string]struct {
		// delay is called when the session of n0 expires, end ends the delay.
		delay, end func(*fixture)
		reason     string
		since      monotonic.Instant
		// until is when it ends by itself, or Open.
		until monotonic.Instant
	}{
		"grace period": {
			delay:  func(w *fixture) { w.sessions["n0"] = session.Gone }, // it was released
			reason: nodehealth.GracePeriod, since: at(0), until: at(50),
		},
		"young term": {
			delay:  func(w *fixture) { w.ownership["n0"] = nodehealth.Ownership{Held: true, HeldSince: w.now} },
			reason: nodehealth.TermYoung, since: at(0), until: at(20),
		},
		"kube-apiserver is away": {
			delay: func(w *fixture) {
				w.noAnswer, w.cluster = true, w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{Detail: "refused"})
			},
			reason: nodehealth.APIServerUnreachable, until: nodehealth.Open,
		},
		"kube-apiserver refuses": {
			delay: func(w *fixture) {
				w.noAnswer, w.cluster = true, w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{Denied: true})
			},
			reason: nodehealth.APIServerDenied, until: nodehealth.Open,
		},
		"kube-apiserver was away": {
			delay: func(w *fixture) {
				w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{}).CheckPassed(w.now.Add(10*time.Second), w.now.Add(10*time.Second))
			},
			reason: nodehealth.APIServerUnreachable, since: at(10), until: at(30),
		},
		"kube-apiserver is slow": {
			delay: func(w *fixture) {
				w.noAnswer, w.cluster = true, w.cluster.CheckPassed(w.now.Add(-4*time.Second), w.now)
			},
			reason: nodehealth.APIServerUnreachable, since: at(0), until: at(4),
		},
		"no zone was ready": {
			delay: func(w *fixture) {
				for _, ready := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue} {
					for _, name := range w.names {
						w.change(name, func(n *corev1.Node) { n.Status.Conditions[3].Status = ready }) // no new heartbeat
					}
					w.plan()
				}
			},
			reason: nodehealth.NoZoneReady, since: at(0), until: at(50),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 10)
			for _, name := range w.names {
				w.sessions[name], w.observes[name] = session.Alive, true
			}
			w.ownership["n0"] = nodehealth.Ownership{Held: true, HeldSince: 1}
			w.rest(start.Sub(1))
			w.now = w.now.Add(time.Nanosecond) // after the last self-check
			w.sessions["n0"] = session.Expired
			c.delay(w)
			w.plan()
			w.now = w.now.Add(time.Millisecond)
			w.plan()
			s := w.states["n0"]
			a := w.rules.Assess(w.now, w.cluster, &s)
			if a.Delay.Reason != c.reason || a.Delay.Until != c.until || c.since > 0 && a.Delay.Since != c.since {
				t.Fatalf("assessed %+v, want %s from %v to %v", a, c.reason, c.since.Sub(0), c.until.Sub(0))
			}
			if c.until == nodehealth.Open {
				w.rest(time.Minute)
				w.expectReady("n0", corev1.ConditionTrue)
				if s := w.states["n0"]; w.rules.Assess(w.now, w.cluster, &s).Health != nodehealth.Silent {
					t.Error("it is not silent while it is held")
				}
				return
			}
			w.rest(c.until.Sub(w.now) - time.Millisecond)
			w.expectReady("n0", corev1.ConditionTrue)
			w.rest(200 * time.Millisecond)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}
