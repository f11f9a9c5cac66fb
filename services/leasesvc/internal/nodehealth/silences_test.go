package nodehealth_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// silences returns what the next holder of shard 0 inherits, by the names of Nodes.
func (w *fixture) silences() map[string]time.Duration {
	inherited := map[string]time.Duration{}
	for _, s := range w.rules.Silences(w.now, w.cluster, w.observe()).ByShard[0] {
		inherited[s.Name] = s.For
	}
	return inherited
}

func (w *fixture) expectSilences(t *testing.T, what string, want map[string]time.Duration) {
	t.Helper()
	if diff := cmp.Diff(want, w.silences()); diff != "" {
		t.Errorf("%s: silences (-want +got):\n%s", what, diff)
	}
}

// gain lets the replica gain the shard of all Nodes.
func (w *fixture) gain(inherited map[string]time.Duration) {
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: w.now, Inherited: inherited[name]}
	}
}

type silences = map[string]time.Duration

func TestSilences_AddUpOverTerms(t *testing.T) {
	w := newFixture(t, 6)
	w.run(12*time.Second, w.names[1:]...)
	w.expectSilences(t, "before a quarter of the grace period", silences{})
	w.run(500*time.Millisecond, w.names[1:]...)
	w.expectSilences(t, "after a quarter of the grace period", silences{"n0": 12500 * time.Millisecond})
	next := w.peer() // a process that has just begun
	next.gain(silences{"n0": 12 * time.Second})
	next.run(10*time.Second, next.names[1:]...)
	next.expectSilences(t, "ten seconds in the next term", silences{"n0": 22 * time.Second})
	next.renew("n0", 0)
	next.expectSilences(t, "after a renewal", silences{})
}

// The next holder observes a Node itself for a while, however long others observed it.
func TestPlan_InheritedSilenceDeclaresOnlyAfterOwnObservation(t *testing.T) {
	for what, c := range map[string]struct {
		inherited, watching, least time.Duration
	}{
		"a part of the grace period":          {20 * time.Second, time.Hour, 30 * time.Second},
		"all of it":                           {time.Hour, time.Hour, 15 * time.Second},
		"all of it, in a process that began":  {time.Hour, 0, 20 * time.Second},
		"half of it, in a process that began": {25 * time.Second, 0, 25 * time.Second},
		"nothing":                             {0, time.Hour, 50 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t, 4)
			for _, name := range w.names {
				w.ownership[name] = nodehealth.Ownership{}
			}
			w.run(c.watching, w.names[1:]...)
			w.gain(silences{"n0": c.inherited})
			w.run(c.least, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.run(time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

func TestPlan_SignOfLifeEndsAnInheritedSilence(t *testing.T) {
	for what, sign := range map[string]func(*fixture){
		"lease":   func(w *fixture) { w.renew("n0", 0) },
		"status":  func(w *fixture) { w.report("n0", corev1.ConditionTrue) },
		"session": func(w *fixture) { w.sessions["n0"] = session.Alive; w.observe(); w.sessions["n0"] = session.Gone },
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t, 4)
			w.gain(silences{"n0": time.Hour})
			w.run(14*time.Second, w.names[1:]...)
			sign(w)
			w.run(50*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.run(time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// A sign of life that this process saw before it gained the shard counts, although the former
// holder stored the silence before that.
func TestPlan_SignOfLifeBeforeTheTermShortensAnInheritedSilence(t *testing.T) {
	w := newFixture(t, 4)
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{}
	}
	w.run(time.Minute, w.names...)
	w.run(3*time.Second, w.names[1:]...)
	w.gain(silences{"n0": 40 * time.Second})
	w.run(47*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// A replica that may not hear living Nodes passes on what it inherited, and adds nothing.
func TestSilences_DoubtAddsNothing(t *testing.T) {
	for what, doubt := range map[string]func(*fixture){
		"kube-apiserver does not answer": func(w *fixture) {
			w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
		},
		"the process was late": func(w *fixture) { w.cluster = w.cluster.Delayed(w.now) },
		"holders were refused": func(w *fixture) { w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat) },
		"most Nodes are silent": func(w *fixture) {
			w.run(13 * time.Second)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t, 9)
			w.gain(silences{"n0": 20 * time.Second})
			w.run(10*time.Second, w.names[1:]...)
			w.expectSilences(t, "before the doubt", silences{"n0": 30 * time.Second})
			doubt(w)
			w.expectSilences(t, "in doubt", silences{"n0": 20 * time.Second})
			w.renew("n0", 0)
			w.expectSilences(t, "after a sign of life", silences{})
		})
	}
}

// After this replica refused holders, a Node that it has not heard may be alive: it has the full
// grace period. A shard that is gained later is not concerned.
func TestPlan_RefusedHoldersLeaveTheFullGracePeriod(t *testing.T) {
	w := newFixture(t, 4)
	w.gain(silences{"n0": time.Hour})
	w.run(10*time.Second, w.names[1:]...)
	w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat)
	w.run(40*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)

	w = newFixture(t, 4)
	w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat)
	w.run(time.Minute, w.names...)
	w.gain(silences{"n0": time.Hour})
	w.run(16*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue) // it renewed the Lease before the term
	w.run(40*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// After an outage that this replica saw, no silence from before counts.
func TestSilences_OutageEndsThem(t *testing.T) {
	w := newFixture(t, 4)
	w.gain(silences{"n0": 30 * time.Second})
	w.cluster = w.cluster.CheckFailed(w.now, nodehealth.CheckFailure{})
	w.noAnswer = true
	w.run(10*time.Second, w.names[1:]...)
	w.noAnswer = false
	w.cluster = w.cluster.CheckPassed(w.now, w.now, nil)
	w.expectSilences(t, "after the outage", silences{})
	w.run(50*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
}

// A replica opens a session with a beat that another one forwarded, and was late: the agent has the
// time that it needs to reach this replica, however old the beat was.
func TestPlan_SessionThatExpiresAfterTheGainOfItsShardDeclaresOnlyAfterOwnObservation(t *testing.T) {
	for what, inherited := range map[string]time.Duration{"no silence stored": 0, "silence stored": time.Hour} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t, 4)
			for _, name := range w.names {
				w.ownership[name] = nodehealth.Ownership{}
			}
			w.run(time.Minute, w.names[1:]...)
			w.gain(silences{"n0": inherited})
			w.run(time.Second, w.names[1:]...)
			w.sessions["n0"] = session.Alive
			w.run(time.Second, w.names[1:]...)
			w.sessions["n0"] = session.Expired
			w.run(13*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.run(time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// The holder of an expired session may be one that this replica refused in this term.
func TestPlan_RefusedHoldersDelayTheEndOfASession(t *testing.T) {
	w := newFixture(t, 4)
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{}
	}
	w.run(time.Minute, w.names[1:]...)
	w.gain(nil)
	w.sessions["n0"] = session.Alive
	w.run(time.Second, w.names[1:]...)
	w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat)
	w.sessions["n0"] = session.Expired
	w.run(49*time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionTrue)
	w.run(time.Second, w.names[1:]...)
	w.expectReady("n0", corev1.ConditionUnknown)
}

// A kubelet whose Lease lasts longer renews it less often. One that renewed just before a process
// began renews again in time.
func TestPlan_InheritedSilenceOfAKubeletThatRenewsRarelyWaitsForTwoRenewals(t *testing.T) {
	for what, c := range map[string]struct{ lease, least time.Duration }{
		"default": {40 * time.Second, 20 * time.Second},
		"rare":    {80 * time.Second, 40 * time.Second},
		"rarest":  {10 * time.Minute, 50 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t, 4)
			lease := w.leases["n0"]
			lease.Duration = c.lease
			w.leases["n0"] = lease
			w.states = map[string]nodehealth.NodeState{}
			w.gain(silences{"n0": time.Hour})
			w.run(c.least, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.run(time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// A Node that was deleted and created again between two observations inherits nothing.
func TestObserve_NodeOfTheSameNameInheritsNoSilence(t *testing.T) {
	w := newFixture(t, 1)
	s := nodehealth.NodeState{Ownership: nodehealth.Ownership{Held: true, HeldSince: w.now, Inherited: time.Hour}}
	s = w.rules.Observe(w.now, s, nodehealth.Observation{Node: w.nodes["n0"]})
	if s.Ownership.Inherited != time.Hour {
		t.Errorf("the Node itself inherits %v", s.Ownership.Inherited)
	}
	w.change("n0", func(node *corev1.Node) { node.UID = "another" })
	s = w.rules.Observe(w.now, s, nodehealth.Observation{Node: w.nodes["n0"]})
	if s.Ownership.Inherited != 0 {
		t.Errorf("the next Node of the same name inherits %v", s.Ownership.Inherited)
	}
}
