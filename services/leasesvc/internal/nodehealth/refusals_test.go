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
		w.cluster = w.cluster.Refused(w.now)
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

// An attacker, or too few replicas, delay a mark for five minutes and not for ever.
func TestRefusals_DelayIsBounded(t *testing.T) {
	w := newFixture(t, 4)
	w.refuse(nodehealth.MaxReceiverDoubt, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.refuse(2*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
	w.refuse(5*time.Minute, w.names[2:]...)
	w.expectReady("n1", corev1.ConditionUnknown)
	if _, _, refuses := w.rules.Refusals(w.now, w.cluster); refuses {
		t.Error("a series that delays nothing any more is reported")
	}
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
