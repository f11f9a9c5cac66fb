package nodehealth_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// history is a fixture with random events, which checks what must hold at any time.
type history struct {
	*fixture
	rapid *rapid.T
	// alive is the last sign of life of each node that must count. posted is the last status with a
	// new heartbeat, which counts for a node whose session is late.
	alive, posted map[string]monotonic.Instant
	// expired is when the session of a node expired.
	expired map[string]monotonic.Instant
	// turns are the times of rate-limited NoExecute taints by zone.
	turns map[string][]monotonic.Instant
}

func everything() nodehealth.Authority { return nodehealth.Authority{MaxSteps: 1000, HoldsZones: true} }

func newHistory(t *rapid.T) *history {
	h := &history{fixture: newFixture(t, 0), rapid: t, alive: map[string]monotonic.Instant{}, posted: map[string]monotonic.Instant{}, expired: map[string]monotonic.Instant{}, turns: map[string][]monotonic.Instant{}}
	for zone := range rapid.IntRange(1, 3).Draw(t, "zones") {
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			name := fmt.Sprintf("z%d-%d", zone, i)
			h.add(name, rapid.SampledFrom([]corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse}).Draw(t, "ready"))
			h.label(name, corev1.LabelTopologyZone, fmt.Sprint(zone))
		}
	}
	h.rules.NormalRate = rapid.SampledFrom([]float64{0, 0.1, 1}).Draw(t, "rate")
	h.now = 1 // so that 0 is before everything
	h.observe()
	return h
}

// happen makes one event of one node.
func (h *history) happen() {
	name := rapid.SampledFrom(h.names).Draw(h.rapid, "node")
	status := rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse})
	switch rapid.IntRange(0, 7).Draw(h.rapid, "what") {
	case 0:
		if h.ready(name) != "" {
			h.report(name, status.Draw(h.rapid, "ready"))
			h.posted[name] = h.now
		}
	case 1, 2:
		h.renew(name, time.Duration(rapid.IntRange(-1000, 1000).Draw(h.rapid, "skew"))*time.Second)
		lease := h.leases[name]
		lease.Duration = rapid.SampledFrom([]time.Duration{0, 0, time.Second, 40 * time.Second, 60 * time.Second, 1000 * time.Second}).Draw(h.rapid, "duration")
		h.leases[name], h.alive[name] = lease, h.now
	case 3:
		// An expired session ends the grace period; another end of a session leaves a full one.
		before := h.sessions[name]
		h.sessions[name] = session.State(rapid.IntRange(0, 3).Draw(h.rapid, "session"))
		if h.sessions[name] == session.Gone && (before == session.Alive || before == session.Suspect) {
			h.alive[name] = h.now
		}
		if before != session.Expired && h.sessions[name] == session.Expired {
			h.expired[name] = h.now
		}
	case 4:
		h.change(name, func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
	case 5:
		h.noAnswer = !h.noAnswer
		if h.noAnswer {
			h.cluster = h.cluster.CheckFailed(h.now, nodehealth.CheckFailure{})
		}
	case 6:
		h.observes[name] = !h.observes[name]
	case 7:
		h.agents[name] = !h.agents[name]
	}
	h.observe()
}

func (h *history) check(plan nodehealth.Plan) {
	suspended := h.cluster.Suspension().Active()
	for _, step := range plan.Steps {
		name := step.Node.Name
		if step.Kind == nodehealth.MarkUnknown && (suspended && h.noAnswer || h.early(name) || h.keeps(name)) {
			h.rapid.Fatalf("%s was declared %v after its last sign of life; deaf: %v", name, h.now.Sub(h.alive[name]), h.noAnswer)
		}
		if step.RateLimited {
			h.turns[step.Zone] = append(h.turns[step.Zone], h.now)
		}
	}
	for zone, turns := range h.turns {
		if n := len(turns); n > 1 && turns[n-1].Sub(turns[n-2]) < time.Second {
			h.rapid.Fatalf("zone %q had turns %v apart", zone, turns[n-1].Sub(turns[n-2]))
		}
	}
}

// keeps returns whether a session keeps its node alive: its agent observes the kubelet, or the
// kubelet never renewed its Lease itself.
func (h *history) keeps(name string) bool {
	_, renewed := h.alive[name]
	speaks := h.sessions[name] == session.Alive || h.sessions[name] == session.Suspect
	return speaks && (h.observes[name] || !renewed)
}

// early returns whether a node must not be marked yet. Without a session it has the grace period
// after it was first observed or gave a sign of life. After an expired session a sign of life
// counts that came later than the last beat: for the grace period, or while the living agent says
// that the kubelet is silent for the grace of the session.
func (h *history) early(name string) bool {
	heard := max(h.alive[name], h.posted[name])
	switch {
	case h.sessions[name] != session.Expired:
		_, ever := h.alive[name]
		return (ever || h.posted[name] > 0) && h.now.Sub(heard) <= h.rules.GracePeriod
	case h.observes[name] && h.agents[name]:
		return heard > 0 && h.now.Sub(heard) <= h.rules.SessionGrace
	}
	return heard > h.expired[name] && h.now.Sub(heard) <= h.rules.GracePeriod
}

func TestPlan_NeverEarlyNeverTooFastAndNeverTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			h.happen()
			h.now = h.now.Add(time.Duration(rapid.IntRange(1, 20_000).Draw(t, "pause")) * time.Millisecond)
			states := h.observe()
			before := frozen(states)
			plan, cluster := h.rules.Plan(nodehealth.Moment{Instant: h.now, Wall: wall(h.now)}, h.cluster, states, everything())
			again, _ := h.rules.Plan(nodehealth.Moment{Instant: h.now, Wall: wall(h.now)}, h.cluster, shuffled(states), everything())
			if diff := cmp.Diff(plan.Steps, again.Steps); diff != "" {
				t.Fatalf("the same world in another order (-first +second):\n%s", diff)
			}
			if diff := cmp.Diff(before, frozen(states)); diff != "" {
				t.Fatalf("planning changed its input (-before +after):\n%s", diff)
			}
			h.cluster = cluster
			h.check(plan)
			for _, step := range plan.Steps {
				h.apply(step)
			}
			h.expectNoneOf(plan.Steps)
			if !h.noAnswer && plan.SelfCheck != nil {
				h.cluster = h.cluster.CheckPassed(h.now, h.now)
			}
		}
	})
}

// expectNoneOf plans on the result of the steps. If no Node was marked Unknown, a Node that had a
// step gets no other one. What follows from new conditions comes in the next pass.
func (h *history) expectNoneOf(done []nodehealth.Step) {
	next, _ := h.rules.Plan(nodehealth.Moment{Instant: h.now, Wall: wall(h.now)}, h.cluster, h.observe(), everything())
	served := map[string]bool{}
	for _, step := range done {
		if step.Kind == nodehealth.MarkUnknown {
			return
		}
		served[step.Node.Name] = true
	}
	for _, step := range next.Steps {
		if served[step.Node.Name] {
			h.rapid.Fatalf("%s had a step and gets another at the same moment: %v %s", step.Node.Name, step.Kind, step.Reason)
		}
	}
}

func frozen(states []nodehealth.NodeState) []*corev1.Node {
	nodes := make([]*corev1.Node, 0, len(states))
	for i := range states {
		nodes = append(nodes, states[i].Node.DeepCopy())
	}
	return nodes
}

func shuffled(states []nodehealth.NodeState) []nodehealth.NodeState {
	mixed := append([]nodehealth.NodeState(nil), states...)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	return mixed
}

// Almost every pass finds nothing to write; half of the nodes may be dead and wait for the rate of
// their zone.
func BenchmarkPlan(b *testing.B) {
	for _, size := range []int{1000, 10_000, 100_000} {
		for _, dead := range []int{0, size / 2} {
			b.Run(fmt.Sprintf("nodes=%d/dead=%d", size, dead), func(b *testing.B) {
				w := newFixture(b, size)
				w.rules.NormalRate, w.rules.PartialRate = 0, 0
				for _, name := range w.names[:dead] {
					w.report(name, corev1.ConditionFalse)
				}
				w.pass()
				states := w.observe()
				b.ReportAllocs()
				for b.Loop() {
					w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: epoch()}, w.cluster, states, nodehealth.Authority{MaxSteps: 64, HoldsZones: true})
				}
			})
		}
	}
}

// Half of a large cluster falls silent at once, and one pass marks only some nodes: the others must
// be cheap.
func BenchmarkPlan_ManySilent(b *testing.B) {
	const size = 100_000
	w := newFixture(b, size)
	w.now = w.now.Add(w.rules.GracePeriod + time.Second)
	for _, name := range w.names[size/2:] {
		w.renew(name, 0)
	}
	states := w.observe()
	cluster := w.cluster.CheckPassed(w.now, w.now)
	b.ReportAllocs()
	for b.Loop() {
		plan, _ := w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: epoch()}, cluster, states, nodehealth.Authority{MaxSteps: 64, HoldsZones: true})
		if len(plan.Steps) != 64 {
			b.Fatalf("%d steps, want 64", len(plan.Steps))
		}
	}
}

// A cluster begins: each Node misses a taint, and the pass may start a few writes or none.
func BenchmarkPlan_ManyDrifted(b *testing.B) {
	const size = 10_000
	for _, free := range []int{0, 64} {
		b.Run(fmt.Sprintf("free=%d", free), func(b *testing.B) {
			w := newFixture(b, size)
			for _, name := range w.names {
				w.report(name, corev1.ConditionFalse)
			}
			states := w.observe()
			b.ReportAllocs()
			for b.Loop() {
				plan, _ := w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: epoch()}, w.cluster, states, nodehealth.Authority{MaxSteps: free, HoldsZones: true})
				if len(plan.Steps) != free {
					b.Fatalf("%d steps, want %d", len(plan.Steps), free)
				}
			}
		})
	}
}
