package nodehealth_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// probed has nodes whose kubelets renew Leases of 40 s every ten seconds. n0 has an agent that
// observes its kubelet. The last renewals are of this moment.
func probed(t *testing.T, count int) *fixture {
	w := newFixture(t, count)
	w.sessions["n0"], w.observes["n0"] = session.Alive, true
	w.renewing(60*time.Second, w.names...)
	return w
}

// renewing lets time pass while kubelets renew their Leases at each tenth second.
func (w *fixture) renewing(d time.Duration, kubelets ...string) {
	for end := w.now.Add(d); w.now < end; {
		w.now = w.now.Add(100 * time.Millisecond)
		if w.now.Sub(0)%(10*time.Second) == 0 {
			for _, name := range kubelets {
				w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: 40 * time.Second, Holder: name}
			}
		}
		w.pass()
	}
}

// expire lets the session of n0 expire.
func (w *fixture) expire() { w.sessions["n0"] = session.Expired }

func TestPlan_KubeletThatItsLivingAgentReportsSilentIsMarkedAfterTheGraceOfItsSession(t *testing.T) {
	w := probed(t, 4)
	w.agents["n0"] = true
	others := w.names[1:]
	w.renewing(15*time.Second, others...)
	w.expire()
	w.renewing(5*time.Second, others...) // the last renewal of n0 is 20 s ago
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(200*time.Millisecond, others...)
	w.expectReady("n0", corev1.ConditionUnknown)
	w.expectReady("n1", corev1.ConditionTrue)
	w.agents["n0"] = false // what was declared stays when the agent dies as well
	w.renewing(5*time.Second, others...)
	if got := w.health("n0"); got != nodehealth.Dead {
		t.Errorf("n0 is %v, want dead", got)
	}
}

func TestPlan_SignsOfAKubeletContradictItsAgent(t *testing.T) {
	for name, sign := range map[string]func(*fixture){
		"renewals": func(w *fixture) { w.renewing(10*time.Second, w.names...) },
		"status": func(w *fixture) {
			w.renewing(10*time.Second, w.names[1:]...)
			w.report("n0", corev1.ConditionTrue)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := probed(t, 4)
			w.agents["n0"] = true
			w.expire()
			for range 30 {
				sign(w)
				w.expectReady("n0", corev1.ConditionTrue)
			}
		})
	}
}

// An agent that is silent too says nothing, so the kubelet has the grace period that it has without
// an agent.
func TestPlan_DeathOfAnAgentShortensNoGracePeriod(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"the agent is silent":           func(*fixture) {},
		"the agent observes no kubelet": func(w *fixture) { w.agents["n0"], w.observes["n0"] = true, false },
		"the Lease has no duration": func(w *fixture) {
			w.agents["n0"] = true
			w.renew("n0", 0)
		},
		"the kubelet renews seldom": func(w *fixture) {
			w.agents["n0"] = true
			w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: 200 * time.Second}
		},
		"the agent falls silent later": func(w *fixture) {
			w.agents["n0"] = true
			w.renewing(19*time.Second, w.names[1:]...)
			w.agents["n0"] = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := probed(t, 4)
			w.expire()
			others, silent := w.names[1:], w.now
			change(w)
			w.renewing(50*time.Second-w.now.Sub(silent), others...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(200*time.Millisecond, others...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// A status that the kubelet posted before its agent fell silent counts, as it does without an
// agent.
func TestPlan_StatusBeforeTheDeathOfAnAgentCounts(t *testing.T) {
	w := probed(t, 4)
	w.renewing(5*time.Second, w.names[1:]...)
	w.report("n0", corev1.ConditionTrue)
	w.renewing(10*time.Second, w.names[1:]...)
	w.sessions["n0"] = session.Suspect
	w.renewing(10*time.Second, w.names[1:]...)
	w.expire()
	w.renewing(30*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(200*time.Millisecond, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// A process that has just begun does not know when the kubelet renewed its Lease.
func TestPlan_NewProcessGivesAKubeletThatRenewsItsLeaseAGracePeriod(t *testing.T) {
	for name, lives := range map[string]bool{"living agent": true, "silent agent": false} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 4)
			w.sessions["n0"], w.observes["n0"], w.agents["n0"] = session.Expired, true, lives
			w.renewing(50*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(200*time.Millisecond, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// While no kubelet renews a Lease, kube-apiserver may take no writes, although it answers reads.
func TestPlan_KubeletsThatAllMissRenewalsGiveAgentsNoWeight(t *testing.T) {
	w := probed(t, 4)
	w.agents["n0"] = true
	w.expire()
	w.renewing(25 * time.Second)
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(15*time.Second, w.names...) // n1 may be the first to renew
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(15*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(6*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

func TestPlan_RenewalAfterAPauseOfAllIsNoVerdict(t *testing.T) {
	w := probed(t, 4)
	w.agents["n0"] = true
	w.expire()
	w.renewing(16 * time.Second)
	w.renewing(20*time.Second, w.names[1:]...) // from 90 s on
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(10*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// A late watch shows renewals late. The verdict waits for a read past the cache.
func TestPlan_StaleCacheMarksNoKubeletThatItsAgentReportsSilent(t *testing.T) {
	w := probed(t, 4)
	w.agents["n0"] = true
	w.expire()
	w.cluster = w.cluster.CacheBehind(w.now, nodehealth.Sample{Node: "n0", LeaseVersion: "9999", RenewTime: wall(w.now)})
	w.noAnswer = true
	w.renewing(30*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
}

// Upstream looks at Nodes every five seconds, so it rarely taints a Node that has just registered.
func TestPlan_NodeThatWasNeverReadyGetsItsNoExecuteTaintLater(t *testing.T) {
	w := newFixture(t, 4)
	w.run(20*time.Second, w.names...)
	w.add("new", corev1.ConditionFalse)
	w.run(4900*time.Millisecond, w.names...)
	w.expectTaints("new", notReadySchedule)
	w.run(300*time.Millisecond, w.names...)
	w.expectTaints("new", notReadySchedule, notReadyExecute)

	w.run(20*time.Second, w.names...) // the rate of the zone
	w.add("quick", corev1.ConditionFalse)
	w.run(200*time.Millisecond, w.names...)
	w.report("quick", corev1.ConditionTrue)
	w.run(time.Second, w.names...)
	w.expectTaints("quick")
	w.report("quick", corev1.ConditionFalse) // it was ready
	w.run(100*time.Millisecond, w.names...)
	w.expectTaints("quick", notReadySchedule, notReadyExecute)
}
