package nodehealth_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// epoch is the wall-clock time of Instant 0.
func epoch() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

func wall(now monotonic.Instant) time.Time { return epoch().Add(now.Sub(0)) }

// fataler is what tests, benchmarks and properties have in common.
type fataler interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// fixture is a cluster in cluster under one ClusterState. Only pass and run apply steps.
type fixture struct {
	t         fataler
	rules     nodehealth.Rules
	cluster   nodehealth.ClusterState
	now       monotonic.Instant
	version   int
	names     []string
	nodes     map[string]*corev1.Node
	leases    map[string]nodehealth.Lease
	sessions  map[string]session.State
	observes  map[string]bool // whether the agent of the session observes the kubelet
	agents    map[string]bool // whether the agent of an expired session is heard
	modes     map[string]string
	cutOff    map[string]monotonic.Instant // since when, as the agent says
	written   map[string]string
	states    map[string]nodehealth.NodeState
	busy      map[string]bool
	ownership map[string]nodehealth.Ownership
	zones     bool // whether the term of the zones is held
	// noAnswer leaves self-checks without an answer.
	noAnswer bool
}

// newFixture has a passed self-check and ready nodes n0 to n<count-1> in one zone, each with a
// Lease.
func newFixture(t fataler, count int) *fixture {
	w := &fixture{
		t: t, rules: nodehealth.DefaultRules(), version: 100,
		nodes: map[string]*corev1.Node{}, leases: map[string]nodehealth.Lease{}, sessions: map[string]session.State{}, observes: map[string]bool{}, agents: map[string]bool{}, modes: map[string]string{},
		cutOff:  map[string]monotonic.Instant{},
		written: map[string]string{}, states: map[string]nodehealth.NodeState{}, busy: map[string]bool{},
		ownership: map[string]nodehealth.Ownership{}, zones: true,
	}
	for i := range count {
		w.add(fmt.Sprintf("n%d", i), corev1.ConditionTrue)
	}
	w.cluster = w.cluster.CheckPassed(0, 0)
	w.observe()
	return w
}

func (w *fixture) next() string {
	w.version++
	return strconv.Itoa(w.version)
}

// add creates a Node whose Ready condition has a status, or none for "".
func (w *fixture) add(name string, ready corev1.ConditionStatus) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + w.next()), ResourceVersion: w.next(), CreationTimestamp: metav1.NewTime(wall(w.now)),
	}}
	if ready != "" {
		for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
			status := corev1.ConditionFalse
			if kind == corev1.NodeReady {
				status = ready
			}
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: status, Reason: "Kubelet", Message: "as told",
				LastHeartbeatTime: metav1.NewTime(wall(w.now)), LastTransitionTime: metav1.NewTime(wall(w.now)),
			})
		}
		w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now)}
	}
	w.nodes[name] = node
	w.names = append(w.names, name)
	slices.Sort(w.names)
}

// change replaces a Node by a changed copy with a newer version.
func (w *fixture) change(name string, alter func(*corev1.Node)) {
	node := w.nodes[name].DeepCopy()
	alter(node)
	node.ResourceVersion = w.next()
	w.nodes[name] = node
}

// report is a status update of a kubelet.
func (w *fixture) report(name string, ready corev1.ConditionStatus) {
	w.change(name, func(node *corev1.Node) {
		for i := range node.Status.Conditions {
			c := &node.Status.Conditions[i]
			status := corev1.ConditionFalse
			if c.Type == corev1.NodeReady {
				status = ready
			}
			if c.Status != status {
				c.Status, c.LastTransitionTime = status, metav1.NewTime(wall(w.now))
			}
			c.LastHeartbeatTime, c.Reason, c.Message = metav1.NewTime(wall(w.now)), "Kubelet", "as told"
		}
	})
}

// renew is a renewal of a kubelet whose clock is off by skew.
func (w *fixture) renew(name string, skew time.Duration) {
	w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now).Add(skew)}
}

func (w *fixture) label(name, key, value string) {
	w.change(name, func(node *corev1.Node) {
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[key] = value
	})
}

// observe observes all Nodes and returns them ordered by name.
func (w *fixture) observe() []nodehealth.NodeState {
	var states []nodehealth.NodeState
	for _, name := range w.names {
		s := w.states[name]
		s.Ownership = w.ownershipOf(name)
		var cutOffFor time.Duration
		if since, cutOff := w.cutOff[name]; cutOff {
			cutOffFor = max(w.now.Sub(since), 1)
		}
		s = w.rules.Observe(w.now, s, nodehealth.Observation{
			Node: w.nodes[name], Lease: w.leases[name], Session: w.sessions[name], SessionObserves: w.observes[name], AgentLives: w.agents[name], WrittenVersion: w.written[name],
			Agent: unique.Make(session.Agent{Mode: w.modes[name]}), CutOffFor: cutOffFor,
		})
		s.Busy = w.busy[name]
		w.states[name] = s
		states = append(states, s)
	}
	return states
}

// ownershipOf returns shard 0, held from the start, unless the test sets another ownership.
func (w *fixture) ownershipOf(name string) nodehealth.Ownership {
	if c, given := w.ownership[name]; given {
		return c
	}
	return nodehealth.Ownership{Held: true}
}

// plan makes one pass and answers its self-check at once, unless noAnswer is set.
func (w *fixture) plan() nodehealth.Plan {
	plan, cluster := w.rules.Plan(nodehealth.Moment{Instant: w.now, Wall: wall(w.now)}, w.cluster, w.observe(), nodehealth.Authority{
		MaxSteps: 1_000_000, HoldsZones: w.zones,
	})
	w.cluster = cluster
	if plan.SelfCheck != nil && !w.noAnswer {
		w.compare(plan.SelfCheck.Samples)
		w.cluster = w.cluster.CheckPassed(w.now, w.now)
	}
	return plan
}

// compare compares samples with the Leases, which are never newer.
func (w *fixture) compare(read []nodehealth.Sample) {
	for _, sample := range read {
		if have := w.leases[sample.Node].Version; have != sample.LeaseVersion {
			w.t.Errorf("sample of %s is of version %q, the Lease is at %q", sample.Node, sample.LeaseVersion, have)
		}
	}
}

// apply applies a step.
func (w *fixture) apply(step nodehealth.Step) {
	w.change(step.Node.Name, func(node *corev1.Node) { *node = *after(step) })
}

// after returns the Node after a step.
func after(step nodehealth.Step) *corev1.Node {
	node := step.Node.DeepCopy()
	for _, c := range step.Conditions {
		i := slices.IndexFunc(node.Status.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type })
		if i < 0 {
			node.Status.Conditions = append(node.Status.Conditions, c)
		} else {
			node.Status.Conditions[i] = c
		}
	}
	if step.Taints != nil {
		node.Spec.Taints = *step.Taints
	}
	for key, value := range step.Labels {
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[key] = value
	}
	return node
}

// pass plans and applies until no step is left at this moment.
func (w *fixture) pass() []nodehealth.Step {
	w.t.Helper()
	var done []nodehealth.Step
	for range 10 {
		plan := w.plan()
		for _, step := range plan.Steps {
			w.apply(step)
		}
		done = append(done, plan.Steps...)
		if len(plan.Steps) == 0 && plan.Held == 0 || w.noAnswer {
			return done
		}
	}
	w.t.Fatalf("plans do not converge: %v", done)
	return nil
}

// run lets time pass in steps of 100 ms with a pass in each, while the given nodes renew every ten
// seconds.
func (w *fixture) run(d time.Duration, alive ...string) []nodehealth.Step {
	w.t.Helper()
	var done []nodehealth.Step
	for end := w.now.Add(d); w.now < end; {
		w.now = w.now.Add(100 * time.Millisecond)
		if w.now.Sub(0)%(10*time.Second) == 0 {
			for _, name := range alive {
				w.renew(name, 0)
			}
		}
		done = append(done, w.pass()...)
	}
	return done
}

func (w *fixture) ready(name string) corev1.ConditionStatus {
	for _, c := range w.nodes[name].Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// taints returns the taints of a node as key:effect, in order.
func (w *fixture) taints(name string) []string {
	var taints []string
	for _, t := range w.nodes[name].Spec.Taints {
		taints = append(taints, t.Key+":"+string(t.Effect))
	}
	return taints
}

func (w *fixture) health(name string) nodehealth.Health {
	s := w.states[name]
	return w.rules.Assess(w.now, w.cluster, &s).Health
}

const (
	notReadyExecute     = corev1.TaintNodeNotReady + ":NoExecute"
	unreachableExecute  = corev1.TaintNodeUnreachable + ":NoExecute"
	notReadySchedule    = corev1.TaintNodeNotReady + ":NoSchedule"
	unreachableSchedule = corev1.TaintNodeUnreachable + ":NoSchedule"
)

func (w *fixture) expectTaints(name string, want ...string) {
	w.t.Helper()
	got := w.taints(name)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("at %v taints of %s are %v, want %v", w.now.Sub(0), name, got, want)
	}
}

func (w *fixture) expectReady(name string, want corev1.ConditionStatus) {
	w.t.Helper()
	if got := w.ready(name); got != want {
		w.t.Errorf("at %v Ready of %s is %q, want %q", w.now.Sub(0), name, got, want)
	}
}
