package nodehealth_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// outage has kube-apiserver fail for a while. No kubelet renews meanwhile.
func (w *fixture) outage(d time.Duration) {
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{Detail: "no answer in time"})
	w.noAnswer = true
	w.run(d)
	w.noAnswer = false
}

// A kube-apiserver that fails again and again delays verdicts, and kubelets renew in between.
func TestPlan_OutagesThatRecurDelayAVerdictAndForbidNone(t *testing.T) {
	w := newFixture(t, 10)
	alive := w.names[1:]
	for range 5 {
		w.run(30*time.Second, alive...)
		w.outage(11 * time.Second)
	}
	w.expectReady("n0", corev1.ConditionUnknown)
	for _, name := range alive {
		w.expectReady(name, corev1.ConditionTrue)
	}
}
