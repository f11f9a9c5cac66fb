package nodehealth_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

var flappingSeeds = flag.Int("nodehealth.flapping", 8, "seeds of the test of a flapping leader")

// flapping is one shard whose leader changes at random. All replicas see the Nodes and Leases of
// one fixture. Half of the nodes have an agent, which beats to the leader; the others have a
// kubelet that renews the Lease.
type flapping struct {
	t        *testing.T
	random   *rand.Rand
	now      monotonic.Instant
	objects  *fixture
	replicas []*fixture
	nodes    map[string]*flappingNode
	leader   *fixture // nil in a gap
	deaf     bool     // whether no agent reaches the leader
	// since is when the term or the gap began, until when it ends. From writable on no checkpoint
	// can be written.
	since, until, writable monotonic.Instant
	stored                 []nodehealth.Silence
	storeAt                monotonic.Instant
	// changes and gap are all changes of the leader and the time without one that hears agents.
	changes int
	gap     time.Duration
	// uncovered are the nodes that beat after the last checkpoint of a term.
	uncovered map[string]bool
	declared  int
}

type flappingNode struct {
	agent bool
	// dies and returns bound a silence; both are 0 for none. A node that never returns is dead.
	dies, returns monotonic.Instant
	heard, next   monotonic.Instant
	// suspect says that the checkpoint has the silence of its session. expires is when a session
	// expires that was restored.
	suspect bool
	expires monotonic.Instant
	// changes and gap are those at its last sign of life.
	changes int
	gap     time.Duration
}

func (n *flappingNode) silent(now monotonic.Instant) bool {
	return n.dies > 0 && now >= n.dies && (n.returns == 0 || now < n.returns)
}

const (
	flapStep = 500 * time.Millisecond
	// storeLag is the longest time between two checkpoints of a leader that can write.
	storeLag = 5 * time.Second
	// cutOff is how long a leader cannot write before its term ends.
	cutOff = 5 * time.Second
	// storedAfter is the silence from which on that of a session or of a Node is stored.
	storedAfter = 12500 * time.Millisecond
)

func newFlapping(t *testing.T, seed uint64) *flapping {
	f := &flapping{
		t: t, random: rand.New(rand.NewPCG(seed, 7)), objects: newFixture(t, 12), nodes: map[string]*flappingNode{}, uncovered: map[string]bool{},
	}
	for i, name := range f.objects.names {
		n := &flappingNode{agent: i%2 == 0, next: f.within(10 * time.Second)}
		if n.agent {
			f.objects.leases[name] = nodehealth.Lease{Version: f.objects.next(), RenewedByUs: true}
		}
		switch i {
		case 0, 1, 2: // dead
			n.dies = f.within(time.Minute)
		case 3, 4: // reboots
			n.dies = f.within(2 * time.Minute)
			n.returns = n.dies.Add(time.Duration(f.within(80 * time.Second)))
		}
		f.nodes[name] = n
	}
	for range 3 {
		f.replicas = append(f.replicas, f.process())
	}
	return f
}

func (f *flapping) within(d time.Duration) monotonic.Instant {
	return monotonic.Instant(f.random.Int64N(int64(d))) + 1
}

// process returns a replica whose process has just begun.
func (f *flapping) process() *fixture {
	r := f.objects.peer()
	for _, name := range r.names {
		r.ownership[name] = nodehealth.Ownership{}
	}
	return r
}

// step lets time pass: signs of life, the leader's passes, and changes of the leader.
func (f *flapping) step() {
	f.now = f.now.Add(flapStep)
	f.objects.now = f.now
	if f.leader == nil || f.deaf {
		f.gap += flapStep
	}
	if f.now >= f.until {
		f.change()
	}
	for _, name := range f.objects.names {
		f.live(name, f.nodes[name])
	}
	for _, r := range f.replicas {
		r.now, r.nodes, r.leases = f.now, f.objects.nodes, f.objects.leases
		for _, step := range r.plan().Steps {
			f.check(r, step)
			f.objects.apply(step)
		}
	}
	f.store()
}

// change ends the term or the gap.
func (f *flapping) change() {
	f.since = f.now
	if f.leader != nil {
		for _, name := range f.leader.names {
			f.leader.ownership[name], f.leader.sessions[name] = nodehealth.Ownership{}, session.Gone
		}
		f.leader, f.until = nil, f.now.Add(time.Duration(f.within(10*time.Second)))
		return
	}
	f.changes++
	i := f.random.IntN(len(f.replicas))
	if f.random.IntN(4) == 0 {
		f.replicas[i] = f.process()
	}
	f.leader = f.replicas[i]
	f.leader.now = f.now
	f.until = f.now.Add(time.Duration(f.within([]time.Duration{8 * time.Second, 30 * time.Second, 70 * time.Second}[f.random.IntN(3)])))
	if f.deaf = f.random.IntN(5) == 0; f.deaf {
		// Some time later it would declare the nodes that it has never heard.
		f.until = min(f.until, f.now.Add(f.leader.rules.GracePeriod-2*flapStep))
	}
	f.writable = f.until
	if f.random.IntN(2) == 0 {
		f.writable = f.until.Add(-cutOff) // its link to etcd is cut
	}
	inherited := map[string]time.Duration{}
	for _, s := range f.stored {
		inherited[s.Name] = s.For
	}
	for _, name := range f.leader.names {
		f.leader.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: f.now, Inherited: inherited[name]}
		n := f.nodes[name]
		if n.suspect {
			f.leader.sessions[name], n.expires = session.Alive, f.now.Add(f.leader.rules.FirstBeat)
		}
		if n.agent && f.deaf {
			n.next = f.until
		} else if n.agent {
			n.next = f.now.Add(time.Duration(f.within(f.leader.rules.FirstBeat)))
		}
	}
	if !f.deaf { // an agent notices the end of its server late
		f.nodes[f.objects.names[6+2*f.random.IntN(3)]].next = f.now.Add(f.leader.rules.LeastSilence - flapStep)
	}
	f.storeAt = f.now.Add(time.Second)
}

// live lets a node beat or renew if that is due.
func (f *flapping) live(name string, n *flappingNode) {
	switch {
	case n.silent(f.now):
		if n.agent && f.leader != nil && f.leader.sessions[name] != session.Gone && f.now >= max(n.expires, n.heard.Add(f.leader.rules.SessionGrace)) {
			f.leader.sessions[name] = session.Expired
		}
		return
	case n.returns > 0 && f.now >= n.returns && n.next < n.returns && !f.deaf:
		n.next = f.now.Add(time.Duration(f.within(5 * time.Second)))
	}
	if f.now < n.next || n.agent && f.leader == nil {
		return
	}
	if n.agent {
		n.next = f.now.Add(5 * time.Second)
		f.leader.sessions[name], n.expires = session.Alive, 0
	} else {
		n.next = f.now.Add(10 * time.Second)
		f.objects.renew(name, 0)
	}
	if f.objects.ready(name) == corev1.ConditionUnknown {
		f.objects.report(name, corev1.ConditionTrue)
	}
	f.uncovered[name] = true
	n.heard, n.changes, n.gap = f.now, f.changes, f.gap
}

// store writes the checkpoint, at most storeLag after the last one.
func (f *flapping) store() {
	if f.leader == nil || f.now < f.storeAt || f.now > f.writable {
		return
	}
	f.storeAt = f.now.Add(time.Duration(f.within(storeLag)))
	f.stored = f.leader.rules.Silences(f.now, f.leader.cluster, f.leader.observe()).ByShard[0]
	for _, name := range f.leader.names {
		n := f.nodes[name]
		n.suspect = n.agent && f.leader.sessions[name] != session.Gone && f.now.Sub(n.heard) >= storedAfter
	}
	clear(f.uncovered)
}

// check checks that no living node is declared, and no other node too early.
func (f *flapping) check(by *fixture, step nodehealth.Step) {
	if step.Kind != nodehealth.MarkUnknown {
		return
	}
	name := step.Node.Name
	n := f.nodes[name]
	if by != f.leader {
		f.t.Fatalf("at %v a replica that is not the leader declares %s", f.now.Sub(0), name)
	}
	if !n.silent(f.now) && n.heard >= n.returns { // otherwise it has yet to give a sign of life
		f.t.Fatalf("at %v %s lives and is declared, %v after the begin of the term: %s", f.now.Sub(0), name, f.now.Sub(f.since), step.Reason)
	}
	expired := by.sessions[name] == session.Expired
	if silence := f.now.Sub(n.heard); !expired && !f.uncovered[name] && silence <= by.rules.GracePeriod {
		f.t.Fatalf("at %v %s is declared %v after a sign of life: %s", f.now.Sub(0), name, silence, step.Reason)
	}
	if own := f.now.Sub(f.since); !expired && own < by.rules.LeastSilence && f.now.Sub(n.heard) > own {
		f.t.Fatalf("at %v %s is declared %v after the begin of the term: %s", f.now.Sub(0), name, own, step.Reason)
	}
	f.declared++
}

// checkBound checks that no node is silent and not declared beyond the bound: a grace period, the
// time without a leader that hears agents, and for each change of the leader LeastSilence or what
// no checkpoint has at most.
func (f *flapping) checkBound() {
	rules := f.objects.rules
	for _, name := range f.objects.names {
		n := f.nodes[name]
		if !n.silent(f.now) || f.leader == nil || f.objects.ready(name) == corev1.ConditionUnknown {
			continue
		}
		changes, gap := f.changes-n.changes, f.gap-n.gap
		bound := rules.GracePeriod + gap + time.Duration(changes)*max(rules.LeastSilence, storedAfter+storeLag+cutOff) + 2*flapStep
		if silence := f.now.Sub(n.heard); silence > bound {
			f.t.Fatalf("at %v %s is silent for %v and not declared, after %d changes of the leader and %v without one",
				f.now.Sub(0), name, silence, changes, gap)
		}
	}
}

// The leader of a shard changes at any rate. No living node is declared, and every dead one is
// within a bound that each change moves by a part of the grace period.
func TestPlan_FlappingLeaderNeitherDeclaresLivingNodesNorSparesDeadOnes(t *testing.T) {
	declared := 0
	for seed := range uint64(*flappingSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := newFlapping(t, seed)
			for f.now < monotonic.Instant(6*time.Minute) {
				f.step()
				f.checkBound()
			}
			declared += f.declared
		})
	}
	if declared < 3**flappingSeeds {
		t.Errorf("%d nodes were declared in all, want three for each seed or more", declared)
	}
}
