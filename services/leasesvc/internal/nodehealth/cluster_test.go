package nodehealth_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// The first self-check of a process gets no answer.
func TestPlan_NewProcessMarksNoNodeBeforeKubeAPIServerAnswers(t *testing.T) {
	w := newFixture(t, 2)
	w.cluster, w.noAnswer = nodehealth.ClusterState{}, true
	begun := w.now
	for range 600 {
		w.now = w.now.Add(100 * time.Millisecond)
		w.cluster = w.cluster.CheckRuns(begun, w.now)
		w.pass()
	}
	w.expectReady("n0", corev1.ConditionTrue)
	if got := w.cluster.Suspension(); got.Reason != nodehealth.APIServerUnreachable || got.Until != nodehealth.Open {
		t.Errorf("suspension %v, want a kube-apiserver that does not answer", got)
	}
}

func TestPlan_OutageMarksNoNodeAndGivesANewGracePeriod(t *testing.T) {
	w := newFixture(t, 10)
	w.report("n9", corev1.ConditionFalse)
	w.run(20*time.Second, w.names...)
	w.noAnswer = true
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.run(5 * time.Minute)
	w.noAnswer = false
	w.run(49*time.Second, "n0")
	for _, name := range w.names[:9] {
		w.expectReady(name, corev1.ConditionTrue)
	}
	w.run(2*time.Second, "n0")
	w.expectReady("n0", corev1.ConditionTrue)
	w.expectReady("n1", corev1.ConditionUnknown)
}

func TestPlan_NodeDeadBeforeAnOutageStaysDead(t *testing.T) {
	w := newFixture(t, 4)
	w.run(60*time.Second, "n1", "n2", "n3")
	w.noAnswer = true
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.run(time.Minute)
	w.noAnswer = false
	w.run(time.Second)
	if got := w.health("n0"); got != nodehealth.Dead {
		t.Errorf("after the outage n0 is %v, want dead", got)
	}
	w.expectTaints("n0", unreachableSchedule, unreachableExecute)
}

// A kubelet whose write failed in a short outage tries again with its next renewal. Checks that
// fail now and then forbid no verdict.
func TestPlan_OneUnansweredCheckWaitsForTheNextRenewalOnce(t *testing.T) {
	w := newFixture(t, 4)
	alive := w.names[1:]
	w.run(50*time.Second, alive...)
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.run(20*time.Second, alive...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.run(time.Second, alive...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// What was declared stays declared: while marking is suspended, taints follow at the rate of the
// zone.
func TestPlan_SuspensionMarksNoNodeAndKeepsTheRateOfTaints(t *testing.T) {
	w := newFixture(t, 9)
	w.report("n0", corev1.ConditionFalse)
	w.pass()
	w.noAnswer = true
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.report("n0", corev1.ConditionTrue)
	w.report("n1", corev1.ConditionFalse)
	w.run(20 * time.Second)
	w.expectTaints("n0")
	w.expectTaints("n1", notReadySchedule, notReadyExecute)
	w.run(time.Minute)
	w.expectReady("n2", corev1.ConditionTrue)
}

// A kube-apiserver that needs a while for each answer delays a verdict by about that.
func TestPlan_SlowAnswersDelayTheVerdictAndNoMore(t *testing.T) {
	for _, slowness := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 6 * time.Second, 20 * time.Second} {
		t.Run(slowness.String(), func(t *testing.T) {
			w := newFixture(t, 40)
			begun, running := w.now, false
			after := func(d time.Duration) {
				for end := w.now.Add(d); w.now < end; {
					if running && w.now.Sub(begun) >= slowness {
						w.cluster, running = w.cluster.CheckPassed(begun, w.now), false
					} else if running {
						w.cluster = w.cluster.CheckRuns(begun, w.now)
					}
					w.noAnswer = true
					if plan := w.pass(); !running {
						begun, running = w.now, true
						_ = plan
					}
					w.now = w.now.Add(100 * time.Millisecond)
					for _, name := range w.names[20:] {
						w.renew(name, 0)
					}
				}
			}
			after(w.rules.GracePeriod - 100*time.Millisecond)
			w.expectReady("n0", corev1.ConditionTrue)
			after(3*slowness + time.Second)
			for _, name := range w.names[:20] {
				w.expectReady(name, corev1.ConditionUnknown)
			}
			w.expectReady(w.names[39], corev1.ConditionTrue)
		})
	}
}

// Kubelets cannot renew while kube-apiserver hangs, so that time is no silence.
func TestPlan_HangOfKubeAPIServerIsNoSilence(t *testing.T) {
	w := newFixture(t, 4)
	w.run(20*time.Second, w.names...)
	w.noAnswer = true
	begun := w.now
	for range 400 {
		w.now = w.now.Add(100 * time.Millisecond)
		w.cluster = w.cluster.CheckRuns(begun, w.now)
		w.pass()
	}
	w.cluster = w.cluster.CheckPassed(begun, w.now)
	w.noAnswer = false
	w.run(40 * time.Second)
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(12 * time.Second)
	w.expectReady("n0", corev1.ConditionUnknown)
}

func TestClusterState_DeniedReadsAreNoSilenceOfKubeAPIServer(t *testing.T) {
	denied := nodehealth.CheckFailure{Denied: true, Detail: "cannot get leases"}
	got := nodehealth.ClusterState{}.CheckFailed(1, denied).Suspension()
	if got.Reason != nodehealth.APIServerDenied || !strings.Contains(got.Message, "cannot get leases") {
		t.Errorf("suspension %+v", got)
	}
}

// The node-lifecycle controller reads the Lease of a dead node in each pass.
func TestPlan_LongDeadNodesCostNothing(t *testing.T) {
	w := newFixture(t, 9)
	w.run(2*time.Minute, w.names[3:]...)
	w.now = w.now.Add(100 * time.Millisecond)
	plan := w.plan()
	if plan.Steps != nil || plan.Held != 0 {
		t.Errorf("steps %v and %d held for nodes declared long ago", plan.Steps, plan.Held)
	}
	w.now = w.now.Add(2 * time.Second)
	if plan = w.plan(); plan.SelfCheck == nil || len(plan.SelfCheck.Samples) != 1 {
		t.Errorf("check %v, want one of a living node", plan.SelfCheck)
	}
}

// A replica that takes over finds dead nodes marked, and gives them no new grace period.
func TestPlan_TakeoverKeepsDeadNodesDead(t *testing.T) {
	w := newFixture(t, 9)
	w.run(time.Minute, w.names[1:]...)
	w.states, w.cluster, w.now = map[string]nodehealth.NodeState{}, nodehealth.ClusterState{}, 0
	plan := w.plan()
	if plan.Counts[nodehealth.Dead] != 1 || plan.Steps != nil {
		t.Errorf("counts %v and steps %v, want one dead and nothing to do", plan.Counts, plan.Steps)
	}
	w.run(50*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
	w.renew("n0", 0)
	w.pass()
	if got := w.health("n0"); got != nodehealth.Alive {
		t.Errorf("after a renewal n0 is %v, want alive", got)
	}
}

// The node-lifecycle controller copies every Node in each pass. Here a pass without a step
// allocates the same for any number of nodes.
func TestPlan_QuietPassesCopyNothing(t *testing.T) {
	allocations := func(nodes int) float64 {
		w := newFixture(t, nodes)
		w.run(time.Second, w.names...)
		states := w.observe()
		return testing.AllocsPerRun(10, func() {
			w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: wall(w.now)}, w.cluster, states, nodehealth.Authority{MaxSteps: 64, HoldsZones: true})
		})
	}
	if few, many := allocations(10), allocations(2000); many > few {
		t.Errorf("%v allocations for 2,000 nodes, %v for 10", many, few)
	}
}
