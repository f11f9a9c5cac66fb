package nodehealth_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// refuse lets a time pass in which this replica refuses connections every second.
func (w *fixture) refuse(d time.Duration, alive ...string) {
	for range d / time.Second {
		w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat)
		w.run(time.Second, alive...)
	}
}

// A Node that is not heard may be one of those that this replica refuses.
func TestRefusals_DelayTheMark(t *testing.T) {
	for what, silence := range map[string]func(*fixture){
		"no session":         func(*fixture) {},
		"an expired session": func(w *fixture) { w.sessions["n0"] = session.Expired },
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t, 4)
			w.run(30*time.Second, w.names...)
			w.refuse(20*time.Second, w.names[1:]...)
			silence(w)
			w.refuse(2*time.Minute, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.run(9*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.run(2*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// An attacker, or too few replicas, delay each mark for five minutes and not for ever.
func TestRefusals_DelayIsBounded(t *testing.T) {
	w := newFixture(t, 4)
	w.refuse(w.rules.GracePeriod+nodehealth.MaxReceiverDoubt, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.refuse(2*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
	w.refuse(w.rules.GracePeriod+nodehealth.MaxReceiverDoubt-3*time.Second, w.names[2:]...)
	w.expectReady("n1", corev1.ConditionTrue)
	w.refuse(5*time.Second, w.names[2:]...)
	w.expectReady("n1", corev1.ConditionUnknown)
}

// A refusal now and then delays the mark of a Node whose agent may be refused, and no other one.
func TestRefusals_RareOnesDelayLittle(t *testing.T) {
	w := newFixture(t, 4)
	for range 10 {
		w.refuse(time.Second, w.names...)
		w.run(time.Minute, w.names...)
	}
	w.run(w.rules.GracePeriod+2*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// A series that ended is no part of the next one.
func TestRefusals_SeriesEnds(t *testing.T) {
	w := newFixture(t, 4)
	w.refuse(time.Second, w.names...)
	w.run(2*time.Minute+2*time.Second, w.names...)
	began := w.now
	w.refuse(time.Second, w.names...)
	if since, _, refuses := w.cluster.Refusals(w.now); !refuses || since != began {
		t.Errorf("refuses since %v is %v, want since %v", since, refuses, began)
	}
}

// The agent of a Node is heard, and says that its kubelet is silent: it is not refused.
func TestRefusals_DelayNoNodeWhoseAgentIsHeard(t *testing.T) {
	w := newFixture(t, 4)
	w.run(time.Second, w.names...)
	w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: 40 * time.Second}
	w.sessions["n0"], w.observes["n0"], w.agents["n0"] = session.Alive, true, true
	w.run(w.rules.GracePeriod+time.Second, w.names[1:]...)
	w.sessions["n0"] = session.Expired
	w.refuse(2*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// A Node that was silent for its grace period before the first refusal was no part of them.
func TestRefusals_LeaveEarlierSilence(t *testing.T) {
	w := newFixture(t, 4)
	w.noAnswer = true // of the self-check, so that n0 is silent and not marked
	w.cluster = w.cluster.Delayed(w.now)
	w.run(55*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.noAnswer = false
	w.refuse(20*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}
