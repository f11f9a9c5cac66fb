package nodehealth_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// peer returns another replica that sees the same objects, and holds the shards that w does not.
func (w *fixture) peer() *fixture {
	c := *w
	c.cluster = nodehealth.ClusterState{}.CheckPassed(w.now, w.now)
	c.states = map[string]nodehealth.NodeState{}
	c.ownership = map[string]nodehealth.Ownership{}
	c.sessions = map[string]session.State{}
	c.observe()
	return &c
}

// share gives the shard of a node to one of two replicas.
func share(name string, to, from *fixture) {
	to.ownership[name], from.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: to.now}, nodehealth.Ownership{}
}

func TestPlan_NodeOfAnotherReplicaOnlyCountsInItsZone(t *testing.T) {
	a := newFixture(t, 8)
	b := a.peer()
	b.zones = false
	for i, name := range a.names {
		if i%2 == 0 {
			share(name, a, b)
		} else {
			share(name, b, a)
		}
	}
	for _, name := range []string{"n0", "n1"} {
		a.change(name, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		a.report(name, corev1.ConditionFalse)
	}
	pa, pb := a.plan(), b.plan()
	if diff := cmp.Diff(pa.Zones, pb.Zones); diff != "" {
		t.Errorf("zones differ (-a +b):\n%s", diff)
	}
	steps := func(p nodehealth.Plan) (all []string) {
		for _, s := range p.Steps {
			all = append(all, fmt.Sprintf("%v %s shard=%t zones=%t", s.Kind, s.Node.Name, s.NeedsShard, s.NeedsZones))
		}
		return all
	}
	// The rate allows n0, whose shard a holds as well, so one write does both.
	if diff := cmp.Diff([]string{"add-no-execute n0 shard=true zones=true"}, steps(pa)); diff != "" {
		t.Errorf("a (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"sync-taints n1 shard=true zones=false"}, steps(pb)); diff != "" {
		t.Errorf("b (-want +got):\n%s", diff)
	}
	if pa.Counts[nodehealth.Alive] != 4 || pb.Counts[nodehealth.Alive] != 4 {
		t.Errorf("counts %v and %v, want four alive each", pa.Counts, pb.Counts)
	}
	for _, step := range pa.Steps {
		a.apply(step)
	}
	for _, step := range pb.Steps {
		b.apply(step)
	}
	a.now = a.now.Add(10 * time.Second)
	if diff := cmp.Diff([]string{"add-no-execute n1 shard=false zones=true"}, steps(a.plan())); diff != "" {
		t.Errorf("a in the next turn (-want +got):\n%s", diff)
	}
	a.expectTaints("n0", corev1.TaintNodeUnschedulable+":NoSchedule", notReadySchedule, notReadyExecute)
	b.expectTaints("n1", corev1.TaintNodeUnschedulable+":NoSchedule", notReadySchedule)
}

// A node whose session is at another replica may show no sign of life here for minutes. It is not
// silent here.
func TestPlan_NodeOfAnotherReplicaIsNeverSilent(t *testing.T) {
	w := newFixture(t, 40)
	for _, name := range w.names[:30] {
		w.ownership[name] = nodehealth.Ownership{Shard: 1}
	}
	if steps := w.run(10*time.Minute, w.names[30:]...); len(steps) != 0 {
		t.Errorf("steps %v", steps)
	}
	plan := w.plan()
	if plan.Counts != [nodehealth.Dead + 1]int{nodehealth.Alive: 10} {
		t.Errorf("counts %v, want ten alive", plan.Counts)
	}
}

func TestPlan_TakeoverGivesANewGracePeriodToAllButDeadNodes(t *testing.T) {
	w := newFixture(t, 9)
	w.run(time.Minute, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
	// The other replica has watched all along without a shard.
	b := w.peer()
	for _, name := range b.names {
		b.ownership[name] = nodehealth.Ownership{}
	}
	b.run(100*time.Second, b.names[1:]...)
	b.run(30 * time.Second) // no sign of life comes any more, for example because the replica with all sessions is gone
	for _, name := range b.names {
		b.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: b.now}
	}
	b.pass()
	if got := b.health("n0"); got != nodehealth.Dead {
		t.Errorf("after the takeover n0 is %v, want dead", got)
	}
	b.run(50 * time.Second)
	b.expectReady("n1", corev1.ConditionTrue)
	b.run(time.Second)
	b.expectReady("n1", corev1.ConditionUnknown)
}

// A replica that gains the zones continues at the rate of the previous one, as far as taints show
// it.
func TestPlan_TakeoverOfTheZonesKeepsTheirRates(t *testing.T) {
	a := newFixture(t, 40)
	a.now = a.now.Add(time.Second)
	b := a.peer()
	b.zones = false
	for _, name := range []string{"n0", "n1", "n2"} {
		a.report(name, corev1.ConditionFalse)
	}
	a.pass()
	a.expectTaints("n0", notReadySchedule, notReadyExecute)
	b.pass()
	b.zones = true
	b.now = b.now.Add(9900 * time.Millisecond)
	b.pass()
	b.expectTaints("n1", notReadySchedule)
	b.now = b.now.Add(100 * time.Millisecond)
	b.pass()
	b.expectTaints("n1", notReadySchedule, notReadyExecute)
	b.expectTaints("n2", notReadySchedule)
}

// Each replica finds out by itself that all zones are down, and when that ends.
func TestPlan_FullDisruptionIsTheSameOnAllReplicas(t *testing.T) {
	a := cluster{"a": {2, 2}, "b": {2, 1}}.world(t)
	b := a.peer()
	b.zones = false
	for i, name := range a.names {
		if i%2 == 0 {
			share(name, a, b)
		} else {
			share(name, b, a)
		}
	}
	both := func(d time.Duration, alive ...string) {
		for end := a.now.Add(d); a.now < end; {
			a.run(100*time.Millisecond, alive...)
			b.now = a.now
			b.pass()
		}
	}
	both(11 * time.Second)
	a.expectTaints("a-000", notReadySchedule, notReadyExecute)
	a.report("b-001", corev1.ConditionFalse)
	both(time.Second)
	for _, name := range a.names {
		a.expectTaints(name, notReadySchedule)
	}
	a.report("b-001", corev1.ConditionTrue)
	both(49*time.Second, "b-001")
	a.expectReady("a-001", corev1.ConditionFalse)
	both(2*time.Second, "b-001")
	a.expectReady("a-000", corev1.ConditionUnknown) // by a
	b.expectReady("a-001", corev1.ConditionUnknown) // by b
}
