package nodehealth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// cluster has zones of so many nodes, of which the first few are not ready.
type cluster map[string]struct{ nodes, notReady int }

func (c cluster) world(t *testing.T) *fixture {
	w := newFixture(t, 0)
	for zone, size := range c {
		for i := range size.nodes {
			name, ready := fmt.Sprintf("%s-%03d", zone, i), corev1.ConditionTrue
			if i < size.notReady {
				ready = corev1.ConditionFalse
			}
			w.add(name, ready)
			w.label(name, corev1.LabelTopologyZone, zone)
		}
	}
	return w
}

func TestPlan_ZoneStatesAndRatesAreThoseOfKubernetes(t *testing.T) {
	zone := func(name string, size, notReady int, state nodehealth.ZoneState, rate float64) nodehealth.Zone {
		return nodehealth.Zone{Name: ":\x00:" + name, Size: size, NotReady: notReady, Waiting: notReady, State: state, Rate: rate}
	}
	for name, c := range map[string]struct {
		cluster cluster
		want    []nodehealth.Zone
	}{
		"few nodes, one bad":           {cluster{"a": {2, 1}}, []nodehealth.Zone{zone("a", 2, 1, nodehealth.Normal, 0.1)}},
		"two of three are few":         {cluster{"a": {3, 2}}, []nodehealth.Zone{zone("a", 3, 2, nodehealth.Normal, 0.1)}},
		"below the threshold":          {cluster{"a": {20, 10}}, []nodehealth.Zone{zone("a", 20, 10, nodehealth.Normal, 0.1)}},
		"small zone partially":         {cluster{"a": {20, 11}}, []nodehealth.Zone{zone("a", 20, 11, nodehealth.PartialDisruption, 0)}},
		"fifty nodes are small":        {cluster{"a": {50, 40}}, []nodehealth.Zone{zone("a", 50, 40, nodehealth.PartialDisruption, 0)}},
		"large zone partially":         {cluster{"a": {60, 40}}, []nodehealth.Zone{zone("a", 60, 40, nodehealth.PartialDisruption, 0.01)}},
		"one zone dead, another alive": {cluster{"a": {4, 4}, "b": {4, 0}}, []nodehealth.Zone{zone("a", 4, 4, nodehealth.FullDisruption, 0.1), zone("b", 4, 0, nodehealth.Normal, 0.1)}},
		"everything is down":           {cluster{"a": {4, 4}, "b": {1, 1}}, []nodehealth.Zone{zone("a", 4, 4, nodehealth.FullDisruption, 0), zone("b", 1, 1, nodehealth.FullDisruption, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.cluster.world(t).plan().Zones); diff != "" {
				t.Errorf("zones (-want +got):\n%s", diff)
			}
		})
	}
}

// The rates of each state can be set, so one dead zone need not get taints at the normal rate.
func TestPlan_RatesFollowTheRules(t *testing.T) {
	w := cluster{"a": {4, 4}, "b": {4, 0}}.world(t)
	w.rules.FullRate = 0
	w.run(time.Minute, w.names...)
	w.expectTaints("a-000", notReadySchedule)
}

func TestPlan_ExcludedNodesDoNotCountButAreJudged(t *testing.T) {
	w := cluster{"a": {4, 4}}.world(t)
	w.add("control-plane", corev1.ConditionTrue)
	w.label("control-plane", corev1.LabelTopologyZone, "a")
	w.label("control-plane", nodehealth.ExcludeDisruptionLabel, "")
	plan := w.plan()
	want := []nodehealth.Zone{{Name: ":\x00:a", Size: 4, NotReady: 4, Waiting: 4, State: nodehealth.FullDisruption}}
	if diff := cmp.Diff(want, plan.Zones); diff != "" {
		t.Errorf("zones (-want +got):\n%s", diff)
	}
	w.run(51 * time.Second)
	w.expectReady("control-plane", corev1.ConditionUnknown)
	w.expectTaints("control-plane", unreachableSchedule)
}

func TestPlan_NothingCountedIsNoDisruption(t *testing.T) {
	w := newFixture(t, 1)
	w.label("n0", nodehealth.ExcludeDisruptionLabel, "")
	w.report("n0", corev1.ConditionFalse)
	w.pass()
	w.expectTaints("n0", notReadySchedule, notReadyExecute)
}

func TestPlan_NoExecuteTaintsKeepTheRate(t *testing.T) {
	w := cluster{"a": {40, 4}}.world(t)
	var tainted []time.Duration
	for range 400 {
		for _, step := range w.run(100*time.Millisecond, w.names...) {
			if step.RateLimited {
				tainted = append(tainted, w.now.Sub(0))
			}
		}
	}
	want := []time.Duration{5100 * time.Millisecond, 15100 * time.Millisecond, 25100 * time.Millisecond, 35100 * time.Millisecond} // none was ever ready
	if !slices.Equal(tainted, want) {
		t.Errorf("nodes were tainted at %v, want %v", tainted, want)
	}
}

func TestPlan_TheLongestNotReadyIsFirst(t *testing.T) {
	w := newFixture(t, 8)
	for _, name := range []string{"n5", "n3"} {
		w.report(name, corev1.ConditionFalse)
		w.now = w.now.Add(time.Second)
	}
	w.pass()
	w.expectTaints("n5", notReadySchedule, notReadyExecute)
	w.expectTaints("n3", notReadySchedule)
}

func TestPlan_OppositeTaintIsReplacedAtOnce(t *testing.T) {
	w := newFixture(t, 8)
	w.report("n0", corev1.ConditionFalse)
	w.pass() // takes the zone's turn
	w.expectTaints("n0", notReadySchedule, notReadyExecute)
	w.run(51*time.Second, w.names[1:]...)
	w.expectTaints("n0", unreachableSchedule, unreachableExecute)
	w.report("n0", corev1.ConditionFalse)
	w.report("n1", corev1.ConditionFalse)
	w.pass()
	w.expectTaints("n0", notReadySchedule, notReadyExecute)
}

func TestPlan_AllZonesDownRemovesTaintsAndAddsThemAtTheRate(t *testing.T) {
	w := cluster{"a": {2, 2}, "b": {2, 1}}.world(t)
	w.run(11 * time.Second)
	w.expectTaints("a-000", notReadySchedule, notReadyExecute)
	w.report("b-001", corev1.ConditionFalse)
	w.pass()
	for _, name := range w.names {
		w.expectTaints(name, notReadySchedule)
	}
	w.run(51 * time.Second) // all fall silent as well
	for _, name := range w.names {
		w.expectReady(name, corev1.ConditionUnknown)
		w.expectTaints(name, unreachableSchedule)
	}
	// One comes back. The others get a taint at the rate each, and those that answer within a grace
	// period none.
	w.report("b-001", corev1.ConditionTrue)
	w.run(time.Second, "b-001")
	w.expectTaints("b-001")
	w.report("a-001", corev1.ConditionTrue)
	w.run(49*time.Second, "b-001")
	w.expectReady("a-001", corev1.ConditionTrue)
	w.run(2*time.Second, "b-001")
	w.expectReady("a-001", corev1.ConditionUnknown)
	w.expectTaints("a-000", unreachableSchedule, unreachableExecute)
}

// The node-lifecycle controller counts only the nodes that it could read in a pass, so it forgets
// zones that it skipped.
func TestPlan_ZonesAreCountedOverAllNodesWhileUncertain(t *testing.T) {
	w := cluster{"a": {6, 4}}.world(t)
	sighted := w.plan().Zones
	w.noAnswer = true
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	for _, name := range w.names {
		w.busy[name] = true
	}
	suspended := w.plan()
	if !w.cluster.Suspension().Active() {
		t.Fatal("the memory of an outage is not suspended")
	}
	if diff := cmp.Diff(sighted, suspended.Zones); diff != "" {
		t.Errorf("zones while suspended (-sighted +suspended):\n%s", diff)
	}
}

// The node-lifecycle controller keeps an empty record for a node that it first meets while it skips
// all nodes, and fails on it when full disruption ends.
func TestPlan_NodeFirstSeenWhileUncertainHasAGracePeriodAfterDisruption(t *testing.T) {
	w := newFixture(t, 2)
	w.report("n0", corev1.ConditionFalse)
	w.report("n1", corev1.ConditionFalse)
	w.pass()
	w.noAnswer = true
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.add("met", corev1.ConditionFalse)
	w.run(time.Second)
	w.noAnswer = false
	w.report("n1", corev1.ConditionTrue)
	w.run(49*time.Second, w.names...)
	w.expectReady("met", corev1.ConditionFalse)
	w.expectReady("n1", corev1.ConditionTrue)
}

func TestPlan_ZoneThatWasEmptyKeepsItsRate(t *testing.T) {
	w := cluster{"a": {4, 1}, "b": {1, 0}}.world(t)
	w.run(w.rules.UnreadyStart + 100*time.Millisecond)
	names := w.names
	w.names = []string{"b-000"}
	w.run(time.Second, "b-000")
	w.names = names
	w.report("a-001", corev1.ConditionFalse)
	if steps := w.pass(); slices.ContainsFunc(steps, func(s nodehealth.Step) bool { return s.RateLimited }) {
		t.Errorf("a new limiter for an old zone: %v", steps)
	}
}

func TestAllZonesDown_IgnoresZonesWithoutCountedNodes(t *testing.T) {
	down := nodehealth.Zone{Name: "down", Size: 2, NotReady: 2, State: nodehealth.FullDisruption}
	disrupted := nodehealth.Zone{Name: "disrupted", Size: 4, NotReady: 3, State: nodehealth.PartialDisruption}
	excluded := nodehealth.Zone{Name: "excluded"}
	for name, c := range map[string]struct {
		zones []nodehealth.Zone
		want  bool
	}{
		"no zones":                         {},
		"only zones without counted nodes": {zones: []nodehealth.Zone{excluded}},
		"one is down":                      {zones: []nodehealth.Zone{down}, want: true},
		"all with counted nodes are down":  {zones: []nodehealth.Zone{down, excluded}, want: true},
		"one has a ready node":             {zones: []nodehealth.Zone{down, disrupted}},
	} {
		if got := nodehealth.AllZonesDown(c.zones); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
