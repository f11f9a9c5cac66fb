package nodehealth_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func TestPlan_SilentNodeIsMarkedUnknownAfterItsGracePeriod(t *testing.T) {
	w := newFixture(t, 4)
	w.run(50*time.Second, "n1", "n2", "n3")
	w.expectReady("n0", corev1.ConditionTrue)
	if got := w.health("n0"); got != nodehealth.Suspect {
		t.Errorf("before its deadline n0 is %v, want suspect", got)
	}
	w.run(200*time.Millisecond, "n1", "n2", "n3")
	w.expectReady("n0", corev1.ConditionUnknown)
	w.expectTaints("n0", unreachableSchedule, unreachableExecute)
	w.expectReady("n1", corev1.ConditionTrue)
	w.expectTaints("n1")
	if got := w.health("n0"); got != nodehealth.Dead {
		t.Errorf("after its deadline n0 is %v, want dead", got)
	}
}

func TestPlan_UnknownConditionsAreThoseOfKubernetes(t *testing.T) {
	w := newFixture(t, 2)
	w.change("n0", func(node *corev1.Node) {
		node.Status.Conditions = append(node.Status.Conditions[1:], // MemoryPressure was never reported
			corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated"},
			corev1.NodeCondition{Type: "example.org/Fan", Status: corev1.ConditionTrue})
	})
	w.run(50*time.Second, "n1")
	plan := w.planAt(t, 100*time.Millisecond)
	heard, created := metav1.NewTime(epoch()), w.nodes["n0"].CreationTimestamp
	unknown := func(kind corev1.NodeConditionType) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
			LastHeartbeatTime: heard, LastTransitionTime: metav1.NewTime(wall(w.now)),
		}
	}
	never := unknown(corev1.NodeMemoryPressure)
	never.Reason, never.Message, never.LastHeartbeatTime = "NodeStatusNeverUpdated", "Kubelet never posted node status.", created
	want := []nodehealth.Step{{
		Kind: nodehealth.MarkUnknown, NeedsShard: true, Node: w.nodes["n0"], Lease: nodehealth.Sample{Node: "n0", LeaseVersion: w.leases["n0"].Version, RenewTime: w.leases["n0"].RenewTime},
		Conditions: []corev1.NodeCondition{unknown(corev1.NodeReady), never, unknown(corev1.NodeDiskPressure), unknown(corev1.NodePIDPressure)},
		Reason:     "no sign of life in the 50.1s that count",
	}}
	if diff := cmp.Diff(want, plan.Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// planAt plans after a while without events.
func (w *fixture) planAt(t *testing.T, later time.Duration) nodehealth.Plan {
	t.Helper()
	w.now = w.now.Add(later)
	return w.plan()
}

func TestPlan_AnySignOfLifeMovesTheDeadline(t *testing.T) {
	for name, sign := range map[string]func(*fixture){
		"heartbeat":           func(w *fixture) { w.report("n0", corev1.ConditionTrue) },
		"lease":               func(w *fixture) { w.renew("n0", 0) },
		"clock stepped back":  func(w *fixture) { w.renew("n0", -time.Hour) },
		"clock stepped ahead": func(w *fixture) { w.renew("n0", time.Hour) },
		"session":             func(w *fixture) { w.sessions["n0"] = session.Alive },
		"session released": func(w *fixture) {
			w.sessions["n0"] = session.Alive
			w.observe()
			w.sessions["n0"] = session.Gone
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 2)
			w.run(40*time.Second, "n1")
			sign(w)
			w.run(50*time.Second, "n1")
			w.expectReady("n0", corev1.ConditionTrue)
			if w.sessions["n0"] == session.Gone {
				w.run(300*time.Millisecond, "n1")
				w.expectReady("n0", corev1.ConditionUnknown)
			}
		})
	}
}

func TestPlan_OtherChangesDoNotMoveTheDeadline(t *testing.T) {
	for name, nothing := range map[string]func(*fixture){
		"label":     func(w *fixture) { w.label("n0", "a", "b") },
		"condition": func(w *fixture) { w.change("n0", func(n *corev1.Node) { n.Status.Conditions[0].Message = "new" }) },
		"lease annotated": func(w *fixture) {
			w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: w.leases["n0"].RenewTime}
		},
		"lease deleted": func(w *fixture) { delete(w.leases, "n0") },
		"cache from the past": func(w *fixture) {
			w.leases["n0"] = nodehealth.Lease{Version: "7", RenewTime: epoch().Add(-time.Minute)}
			w.observe()
			w.leases["n0"] = nodehealth.Lease{Version: "103", RenewTime: epoch()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 2)
			w.noAnswer = true // the cache of the past would be found out
			w.run(40*time.Second, "n1")
			nothing(w)
			w.now = w.now.Add(10100 * time.Millisecond)
			if plan := w.plan(); plan.Counts[nodehealth.Silent] != 1 {
				t.Errorf("n0 is %v, want silent", w.health("n0"))
			}
		})
	}
}

func TestPlan_NodeThatNeverReportedHasTheStartupGracePeriod(t *testing.T) {
	w := newFixture(t, 1)
	w.add("new", "")
	w.run(60*time.Second, "n0")
	w.expectReady("new", "")
	if got := w.health("new"); got != nodehealth.Starting {
		t.Errorf("within its startup grace it is %v, want starting", got)
	}
	w.run(300*time.Millisecond, "n0")
	w.expectReady("new", corev1.ConditionUnknown)
	// A renewal by leasesvc is no sign of life.
	w.run(time.Minute, "n0")
	w.expectReady("new", corev1.ConditionUnknown)
	if got := w.health("new"); got != nodehealth.Dead {
		t.Errorf("after it was declared it is %v, want dead", got)
	}
}

func TestPlan_RecreatedNodeHasNoHistory(t *testing.T) {
	w := newFixture(t, 2)
	w.run(49*time.Second, "n1")
	w.names = []string{"n1"}
	w.add("n0", corev1.ConditionTrue)
	w.run(49*time.Second, "n1")
	w.expectReady("n0", corev1.ConditionTrue)
}

// The session of the deleted Node stays expired until the kubelet writes its first Lease, some ten
// seconds after it has registered. Its status has a heartbeat of whole seconds, so that a second
// report may look like the first one.
func TestPlan_RecreatedNodeIsNotJudgedByTheSessionOfTheDeletedOne(t *testing.T) {
	w := newFixture(t, 2)
	w.sessions["n0"] = session.Alive
	w.run(100*time.Second, "n1")
	w.sessions["n0"] = session.Expired
	w.run(300*time.Millisecond, "n1")
	w.expectReady("n0", corev1.ConditionUnknown)
	w.names = []string{"n1"}
	w.run(time.Second, "n1")
	w.add("n0", corev1.ConditionTrue)
	w.run(49*time.Second, "n1")
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(2*time.Second, "n1")
	w.expectReady("n0", corev1.ConditionUnknown)
}

func TestPlan_ExpiredSessionIsDeadAtItsOwnDeadline(t *testing.T) {
	w := newFixture(t, 2)
	w.sessions["n0"] = session.Alive
	w.run(100*time.Second, "n1")
	// The session's owner writes the Lease; the watch delivers the renewal for the last beat some
	// seconds later.
	w.renew("n0", 0)
	w.run(time.Second, "n1")
	w.written["n0"] = w.leases["n0"].Version
	w.sessions["n0"] = session.Suspect
	w.run(9*time.Second, "n1")
	if got := w.health("n0"); got != nodehealth.Suspect {
		t.Errorf("n0 is %v, want suspect", got)
	}
	w.sessions["n0"] = session.Expired
	w.run(200*time.Millisecond, "n1")
	w.expectReady("n0", corev1.ConditionUnknown)
}

func TestPlan_ExpiredSessionOfAKubeletThatRenewsItsLeaseMarksNoNode(t *testing.T) {
	w := newFixture(t, 2)
	w.sessions["n0"] = session.Alive
	w.run(100*time.Second, "n0", "n1")
	w.sessions["n0"] = session.Expired
	w.run(100*time.Second, "n0", "n1")
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(51*time.Second, "n1")
	w.expectReady("n0", corev1.ConditionUnknown)
}

// The owner of a session that expires writes its Lease once more. Another replica takes that for no
// sign of life, whether it gains the shard or the node is marked Unknown.
func TestPlan_LeaseOfAnExpiredSessionIsNoSignOfLife(t *testing.T) {
	w := newFixture(t, 2)
	w.ownership["n0"] = nodehealth.Ownership{}
	w.run(20*time.Second, "n1")
	w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: 10 * time.Second, RenewedByUs: true}
	w.run(time.Second, "n1")
	w.ownership["n0"], w.sessions["n0"] = nodehealth.Ownership{Held: true, HeldSince: w.now}, session.Expired
	w.run(w.rules.LeastSilence, "n1")
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(300*time.Millisecond, "n1")
	w.expectReady("n0", corev1.ConditionUnknown)
	delete(w.sessions, "n0")
	w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: 10 * time.Second, RenewedByUs: true}
	w.run(time.Second, "n1")
	if got := w.health("n0"); got != nodehealth.Dead {
		t.Errorf("after its Lease was written once more n0 is %v, want dead", got)
	}
}

func TestPlan_RecoveryRemovesAllTaints(t *testing.T) {
	w := newFixture(t, 2)
	w.run(51*time.Second, "n1")
	w.expectTaints("n0", unreachableSchedule, unreachableExecute)
	w.report("n0", corev1.ConditionTrue)
	w.pass()
	w.expectTaints("n0")
	if got := w.health("n0"); got != nodehealth.Alive {
		t.Errorf("n0 is %v, want alive", got)
	}
}

func TestPlan_BusyNodeGetsNoStep(t *testing.T) {
	w := newFixture(t, 2)
	w.busy["n0"] = true
	if steps := w.run(51*time.Second, "n1"); len(steps) != 0 {
		t.Errorf("steps %v for a busy node", steps)
	}
	w.busy["n0"] = false
	w.pass()
	w.expectReady("n0", corev1.ConditionUnknown)
}
