package nodehealth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// sessionGrace and suspectAfter are those of class node.
	sessionGrace = 20 * time.Second
	suspectAfter = 12500 * time.Millisecond
)

// newSessionFixture has nodes with a living session here.
func newSessionFixture(t *testing.T, count int) *fixture {
	w := newFixture(t, count)
	for _, name := range w.names {
		w.sessions[name] = session.Alive
	}
	w.run(time.Minute)
	return w
}

// cut has the beats of nodes end, one after the other within an interval of five seconds, and lets
// their sessions expire.
func (w *fixture) cut(names []string, during func()) {
	begin := w.now
	for w.now.Sub(begin) < sessionGrace+time.Second {
		for i, name := range names {
			last := begin.Add(-5 * time.Second * time.Duration(i) / time.Duration(len(names)))
			switch silence := w.now.Sub(last); {
			case silence >= sessionGrace:
				w.sessions[name] = session.Expired
			case silence >= suspectAfter:
				w.sessions[name] = session.Suspect
			}
		}
		during()
		w.pass()
		w.now = w.now.Add(100 * time.Millisecond)
	}
}

// elapse lets time pass. Nodes beat last at a time from now on, and beat again from another time
// on. It returns when each node was marked, and whether few nodes are heard then.
func (w *fixture) elapse(d time.Duration, last, back map[string]time.Duration) (marked map[string]time.Duration, few bool) {
	marked = map[string]time.Duration{}
	for begin := w.now; w.now.Sub(begin) < d; w.now = w.now.Add(100 * time.Millisecond) {
		at := w.now.Sub(begin)
		for name, beat := range last {
			again, returns := back[name]
			switch silence := at - beat; {
			case returns && at >= again:
				w.sessions[name] = session.Alive
			case silence >= sessionGrace:
				w.sessions[name] = session.Expired
			case silence >= suspectAfter:
				w.sessions[name] = session.Suspect
			}
		}
		w.pass()
		for _, name := range w.names {
			if _, known := marked[name]; !known && w.ready(name) == corev1.ConditionUnknown {
				marked[name] = at
			}
		}
	}
	return marked, w.cluster.HearsFew(w.now)
}

// expectHeardAgain checks that HearsFew ends when all nodes come back.
func (w *fixture) expectHeardAgain() {
	w.t.Helper()
	for _, name := range w.names {
		w.sessions[name] = session.Alive
	}
	w.run(time.Second)
	if w.cluster.HearsFew(w.now) {
		w.t.Errorf("HearsFew is true after all nodes came back")
	}
}

func (w *fixture) unknown() (count int) {
	for _, name := range w.names {
		if w.ready(name) == corev1.ConditionUnknown {
			count++
		}
	}
	return count
}

func nothing() {}

// The sessions of this replica expire together when its certificate has expired or a network policy
// cuts it off. The agents come back, and no node was marked.
func TestPlan_SessionsThatExpireTogetherAreHeldAgainstTheReceiver(t *testing.T) {
	w := newSessionFixture(t, 100)
	w.cut(w.names, nothing)
	w.run(25 * time.Second)
	if got := w.unknown(); got > 0 {
		t.Fatalf("%d nodes are marked %v after the last beat", got, sessionGrace+25*time.Second)
	}
	for _, name := range w.names[:60] { // most come back, the others need longer
		w.sessions[name] = session.Alive
	}
	w.run(45 * time.Second)
	if got := w.unknown(); got > 0 {
		t.Fatalf("%d nodes are marked while agents come back", got)
	}
	w.run(10 * time.Second)
	if got := w.unknown(); got != 40 {
		t.Errorf("%d nodes are marked, want the 40 that did not come back", got)
	}
}

// A failure of all nodes looks the same at first, and is declared one grace period later.
func TestPlan_DeathOfAllNodesIsDeclaredAGracePeriodLater(t *testing.T) {
	w := newSessionFixture(t, 100)
	w.cut(w.names, nothing)
	w.run(w.rules.GracePeriod)
	if got := w.unknown(); got != 100 {
		t.Errorf("%d nodes are marked %v after the last beat, want all", got, sessionGrace+time.Second+w.rules.GracePeriod)
	}
	w.run(2 * time.Minute)
	if got := w.unknown(); got != 100 {
		t.Errorf("%d nodes are marked two minutes later, want all", got)
	}
}

// A replica with few nodes may be cut off too. The only node of a replica is marked at once.
func TestPlan_SilenceOfAllOfFewNodesIsHeldAgainstTheReceiver(t *testing.T) {
	for nodes, atOnce := range map[int]int{1: 1, 2: 0, 3: 0} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			w := newSessionFixture(t, nodes)
			w.cut(w.names, nothing)
			if got := w.unknown(); got != atOnce {
				t.Errorf("%d nodes are marked when the sessions expire, want %d", got, atOnce)
			}
			w.run(w.rules.GracePeriod)
			if got := w.unknown(); got != nodes {
				t.Errorf("%d nodes are marked a grace period later, want all %d", got, nodes)
			}
		})
	}
}

// Most nodes are back, and the others were silent for less than their sessions live.
func TestPlan_NodeThatIsSuspectAtTheEndOfADoubtHasAGracePeriod(t *testing.T) {
	for _, nodes := range []int{2, 100} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			w := newSessionFixture(t, nodes)
			last, back := map[string]time.Duration{}, map[string]time.Duration{}
			for i, name := range w.names {
				last[name] = -5 * time.Second * time.Duration(i) / time.Duration(nodes)
				back[name] = 22*time.Second - 5*time.Second*time.Duration(i*37%nodes)/time.Duration(nodes)
			}
			if marked, _ := w.elapse(2*time.Minute, last, back); len(marked) > 0 {
				t.Errorf("living nodes are marked: %v", marked)
			}
		})
	}
}

// A second doubt takes away no grace period that the first one gave.
func TestPlan_NodesOfADoubtKeepTheirGracePeriodInTheNextOne(t *testing.T) {
	w := newSessionFixture(t, 10)
	last, back := map[string]time.Duration{}, map[string]time.Duration{}
	for i, name := range w.names {
		if last[name] = 0; i < 7 {
			back[name] = 58 * time.Second
		}
	}
	w.elapse(58*time.Second+200*time.Millisecond, last, back)
	for i, name := range w.names {
		if last[name] = 0; i >= 7 {
			last[name] = -58 * time.Second
		} else {
			back[name] = 16 * time.Second
		}
	}
	marked, _ := w.elapse(48*time.Second, last, back)
	if len(marked) > 0 {
		t.Errorf("marked before the end of the grace period are %v", marked)
	}
	if marked, _ = w.elapse(4*time.Second, nil, nil); len(marked) != 3 {
		t.Errorf("marked after it are %v, want the three that did not come back", marked)
	}
}

// A replica that hears a node again, and doubts no more, keeps its shards.
func TestClusterState_HearsFewEndsWithTheDoubt(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		for _, returns := range []time.Duration{16 * time.Second, 18 * time.Second, 19 * time.Second, 21 * time.Second} {
			t.Run(fmt.Sprintf("%d nodes, one returns after %v", nodes, returns), func(t *testing.T) {
				w := newSessionFixture(t, nodes)
				last := map[string]time.Duration{}
				for _, name := range w.names {
					last[name] = 0
				}
				if _, few := w.elapse(returns+time.Second, last, map[string]time.Duration{"n0": returns}); few {
					t.Error("HearsFew is true")
				}
			})
		}
	}
}

// While shards move away, those that remain prove nothing.
func TestClusterState_HearsFewLastsWhileShardsLeave(t *testing.T) {
	w := newFixture(t, 20)
	last := map[string]time.Duration{}
	for i, name := range w.names {
		w.sessions[name] = session.Alive
		w.ownership[name] = nodehealth.Ownership{Held: true, Shard: i}
		if i >= 4 {
			last[name] = 0
		}
	}
	w.run(time.Minute)
	expect := func(when string, want bool) {
		t.Helper()
		if got := w.cluster.HearsFew(w.now); got != want {
			t.Errorf("HearsFew = %v %s", got, when)
		}
	}
	w.elapse(19*time.Second, last, nil)
	expect("after a doubt of some seconds", true)
	for i, name := range w.names {
		if i < 3 || i >= 6 {
			w.sessions[name], w.ownership[name] = session.Gone, nodehealth.Ownership{}
		}
	}
	w.run(time.Second)
	expect("while one of three nodes is heard that have not left", true)
	w.sessions["n0"], w.ownership["n0"] = session.Alive, nodehealth.Ownership{Held: true, HeldSince: w.now}
	w.run(20 * time.Second)
	expect("after a node of a later shard is heard", false)
}

// A replica is cut off shortly before the end of a doubt about dead nodes.
func TestPlan_CutAtTheEndOfADoubtIsDoubtedToo(t *testing.T) {
	for _, cut := range []time.Duration{44 * time.Second, 47 * time.Second, 50 * time.Second} {
		t.Run(cut.String(), func(t *testing.T) {
			w := newSessionFixture(t, 10)
			last := map[string]time.Duration{}
			for i, name := range w.names {
				if last[name] = 0; i >= 6 {
					last[name] = cut
				}
			}
			few := cut + suspectAfter // since then few are heard; shards move ten seconds later
			marked, _ := w.elapse(few+12*time.Second, last, nil)
			for name := range marked {
				if last[name] > 0 {
					t.Errorf("the living node %s is marked %v after the cut", name, marked[name]-cut)
				}
			}
			if !w.cluster.HearsFew(w.now) {
				t.Error("HearsFew is false")
			}
		})
	}
}

// Some agents beat once during a cut. The others fell silent in the first doubt.
func TestPlan_BeatsOfSomeNodesDuringACutForbidNoSecondDoubt(t *testing.T) {
	w := newSessionFixture(t, 6)
	last, back := map[string]time.Duration{}, map[string]time.Duration{}
	for i, name := range w.names[:5] {
		if last[name] = 0; i < 3 {
			back[name] = 14500 * time.Millisecond
		}
	}
	w.elapse(16*time.Second, last, back)
	for i, name := range w.names[:5] {
		if last[name] = 0; i >= 3 {
			last[name] = -16 * time.Second
		}
	}
	if marked, _ := w.elapse(34*time.Second, last, nil); len(marked) > 0 {
		t.Errorf("marked 50s after the begin of the cut are %v", marked)
	}
}

// A Node that is deleted during a cut, and a refusal after it, are no evidence.
func TestClusterState_HearsFewEndsWhenTheOtherNodesAreHeard(t *testing.T) {
	w := newFixture(t, 8)
	last := map[string]time.Duration{}
	for i, name := range w.names {
		w.sessions[name], last[name] = session.Alive, 0
		w.ownership[name] = nodehealth.Ownership{Held: true, Shard: i}
	}
	w.run(time.Minute)
	w.elapse(21*time.Second, last, nil)
	w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat)
	if !w.cluster.HearsFew(w.now) {
		t.Error("HearsFew is false after a refusal")
	}
	w.run(time.Minute)
	w.names = w.names[1:]
	w.expectHeardAgain()
}

// What fell silent in a doubt is in doubt for a grace period more, if holders ended the doubt.
func TestClusterState_DoubtedUntilHoldersHaveReturned(t *testing.T) {
	w := newSessionFixture(t, 10)
	last, back := map[string]time.Duration{}, map[string]time.Duration{}
	for i, name := range w.names {
		if last[name] = 0; i >= 3 {
			back[name] = 25 * time.Second
		}
	}
	w.elapse(30*time.Second, last, back)
	if lasted, doubts := w.cluster.Doubted(w.now, w.rules.GracePeriod); !doubts || lasted < 15*time.Second {
		t.Errorf("in doubt for %v, %v five seconds after the doubt ended", lasted, doubts)
	}
	w.run(w.rules.GracePeriod)
	if lasted, doubts := w.cluster.Doubted(w.now, w.rules.GracePeriod); doubts {
		t.Errorf("in doubt for %v after the grace period", lasted)
	}
}

// A replica is cut off just after it has gained shards, which return to their owner. One node
// remains.
func TestPlan_DoubtLastsWhenMostSilentNodesHaveLeft(t *testing.T) {
	w := newSessionFixture(t, 10)
	for i, name := range w.names[1:] {
		w.sessions[name], w.ownership[name] = session.Gone, nodehealth.Ownership{Shard: 1 + i}
	}
	w.run(time.Minute)
	for i, name := range w.names[1:] {
		w.sessions[name], w.ownership[name] = session.Alive, nodehealth.Ownership{Held: true, Shard: 1 + i, HeldSince: w.now}
	}
	w.run(3 * time.Second)
	for _, name := range w.names {
		w.sessions[name] = session.Suspect
	}
	w.run(time.Second)
	for i, name := range w.names[1:] {
		w.sessions[name], w.ownership[name] = session.Gone, nodehealth.Ownership{Shard: 1 + i}
	}
	w.run(2 * time.Second)
	w.sessions["n0"] = session.Expired
	w.run(15 * time.Second)
	if few := w.cluster.HearsFew(w.now); !few || w.unknown() > 0 {
		t.Errorf("HearsFew = %v and %d nodes are marked, want a doubt about the one that remains", few, w.unknown())
	}
}

// One beat of one of two nodes arrives during a cut.
func TestPlan_BeatThatArrivesDuringACutEndsTheDoubtForNoNode(t *testing.T) {
	w := newSessionFixture(t, 2)
	w.elapse(15*time.Second, map[string]time.Duration{"n0": 0, "n1": 0}, nil)
	w.sessions["n0"] = session.Alive
	marked, few := w.elapse(45*time.Second, map[string]time.Duration{"n0": 0, "n1": -15 * time.Second}, nil)
	if len(marked) > 0 || !few {
		t.Errorf("marked a minute after the begin of the cut are %v and HearsFew = %v, want no node and a doubt", marked, few)
	}
}

// Sessions that live longer than a grace period of Nodes have not expired when their doubt ends.
func TestPlan_DoubtLastsUntilSessionsHaveExpired(t *testing.T) {
	w := newSessionFixture(t, 10)
	for range 69 * 10 {
		for _, name := range w.names {
			w.sessions[name] = session.Suspect
		}
		w.pass()
		w.now = w.now.Add(100 * time.Millisecond)
	}
	for _, name := range w.names {
		w.sessions[name] = session.Expired
	}
	w.pass()
	if got := w.unknown(); got > 0 {
		t.Errorf("%d nodes are marked when their sessions expire together", got)
	}
	w.run(20 * time.Second)
	if got := w.unknown(); got != len(w.names) {
		t.Errorf("%d nodes are marked 20s later, want all", got)
	}
}

// A node that is marked says nothing about the receiver.
func TestPlan_SecondDeathOfTwoNodesIsDeclaredAtOnce(t *testing.T) {
	for _, second := range []time.Duration{10 * time.Second, 30 * time.Second, 55 * time.Second} {
		t.Run(fmt.Sprintf("%v after the first one", second), func(t *testing.T) {
			w := newSessionFixture(t, 2)
			marked, _ := w.elapse(2*time.Minute, map[string]time.Duration{"n0": 0, "n1": second}, nil)
			for name, want := range map[string]time.Duration{"n0": sessionGrace, "n1": second + sessionGrace} {
				if got := marked[name]; got < want || got > want+time.Second {
					t.Errorf("%s is marked after %v, want %v", name, got, want)
				}
			}
		})
	}
}

// An agent that reports a silent kubelet is heard.
func TestPlan_ReportsOfSilentKubeletsRaiseNoDoubt(t *testing.T) {
	for _, nodes := range []int{2, 10} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			w := newSessionFixture(t, nodes)
			last := map[string]time.Duration{}
			for _, name := range w.names {
				w.observes[name], w.agents[name], last[name] = true, true, 0
				w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), RenewedByUs: true, Duration: 40 * time.Second}
			}
			if marked, few := w.elapse(sessionGrace+time.Second, last, nil); len(marked) != nodes || few {
				t.Errorf("marked are %v and HearsFew = %v, want all nodes marked and the replica not in doubt", marked, few)
			}
		})
	}
}

// A marked Node whose session expired at another replica is heard too, if its agent reports.
func TestPlan_ReporterOfAnotherReplicaIsHeard(t *testing.T) {
	w := newSessionFixture(t, 3)
	w.observes["n2"], w.agents["n2"], w.sessions["n2"] = true, true, session.Gone
	w.report("n2", corev1.ConditionUnknown)
	w.pass()
	w.sessions["n2"] = session.Expired
	w.run(time.Minute)
	marked, _ := w.elapse(sessionGrace+time.Second, map[string]time.Duration{"n0": 0, "n1": 0}, nil)
	if len(marked) != 3 {
		t.Errorf("marked are %v, want all", marked)
	}
}

// One to three nodes that never reached a new leader are dead, unless the leader heard few before.
func TestPlan_FewNodesThatWereNeverHeardRaiseADoubtAfterAnother(t *testing.T) {
	for _, c := range []struct {
		returned int
		before   bool
	}{{2, false}, {2, true}, {1, false}, {1, true}} {
		before := c.before
		t.Run(fmt.Sprintf("%d nodes, few heard before = %v", c.returned, before), func(t *testing.T) {
			w := newSessionFixture(t, 2)
			move := func(held bool) {
				if held {
					w.names = w.names[:c.returned]
				}
				for _, name := range w.names {
					w.sessions[name] = session.Gone
					w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), RenewedByUs: true}
					w.ownership[name] = nodehealth.Ownership{Held: held, HeldSince: w.now}
				}
			}
			if before {
				w.elapse(30*time.Second, map[string]time.Duration{"n0": 0, "n1": 0}, nil)
			}
			move(false)
			w.run(15 * time.Minute)
			move(true)
			marked, _ := w.elapse(w.rules.GracePeriod+time.Second, nil, nil)
			if before && len(marked) > 0 || !before && len(marked) != c.returned {
				t.Errorf("marked after a grace period are %v, want none after an earlier doubt and %d otherwise", marked, c.returned)
			}
		})
	}
}

// Another replica should have the shards of one that hears few nodes, unless it refuses them
// itself.
func TestClusterState_HearsFew(t *testing.T) {
	for what, c := range map[string]struct {
		silent, of int
		refuses    bool
		want       bool
	}{
		"no silent node":           {silent: 0, of: 100},
		"few silent nodes":         {silent: 3, of: 100},
		"seven of ten are silent":  {silent: 70, of: 100},
		"eight of ten are silent":  {silent: 80, of: 100, want: true},
		"all are silent":           {silent: 100, of: 100, want: true},
		"all are silent, refusing": {silent: 100, of: 100, refuses: true},
		"two of three are silent":  {silent: 2, of: 3},
		"three are silent":         {silent: 3, of: 3, want: true},
		"two are silent":           {silent: 2, of: 2, want: true},
		"the only one is silent":   {silent: 1, of: 1},
	} {
		t.Run(what, func(t *testing.T) {
			w := newSessionFixture(t, c.of)
			w.cut(w.names[:c.silent], func() {
				if c.refuses {
					w.cluster = w.cluster.Refused(w.now, w.rules.FirstBeat)
				}
			})
			if got := w.cluster.HearsFew(w.now); got != c.want {
				t.Errorf("HearsFew = %v, want %v", got, c.want)
			}
			w.expectHeardAgain()
		})
	}
}

// A leader gains shards of nodes that had sessions, and hears none of them: it is the one that is
// cut off, or all nodes died meanwhile.
func TestPlan_LeaderThatNeverHeardItsNodesDoubts(t *testing.T) {
	for _, c := range []struct {
		heard, marked int
		before        bool // the leader had them in an earlier term
	}{{heard: 0, marked: 10}, {heard: 7, marked: 3}, {heard: 0, marked: 10, before: true}} {
		heard, marked := c.heard, c.marked
		t.Run(fmt.Sprintf("%d of 10 are heard, an earlier term = %v", heard, c.before), func(t *testing.T) {
			w := newFixture(t, 10)
			if c.before {
				w = newSessionFixture(t, 10)
			}
			for _, name := range w.names {
				w.sessions[name] = session.Gone
				w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), RenewedByUs: true}
				w.ownership[name] = nodehealth.Ownership{}
			}
			w.run(time.Minute)
			for _, name := range w.names {
				w.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: w.now}
			}
			for _, name := range w.names[:heard] {
				w.sessions[name] = session.Alive
			}
			w.run(30 * time.Second)
			if w.cluster.HearsFew(w.now) {
				t.Error("the leader doubts before agents that are late have reached it")
			}
			w.run(5 * time.Second)
			if few := w.cluster.HearsFew(w.now); few != (heard == 0) {
				t.Errorf("HearsFew = %v", few)
			}
			w.run(w.rules.GracePeriod - 25*time.Second)
			if got, want := w.unknown(), marked; heard == 0 && got != 0 || heard > 0 && got != want {
				t.Errorf("%d nodes are marked after a grace period, want %d unless the leader doubts", got, want)
			}
			w.run(w.rules.GracePeriod)
			if got := w.unknown(); got != marked {
				t.Errorf("%d nodes are marked in the end, want %d", got, marked)
			}
		})
	}
}

// Shards move from a replica that hears few to one that does not, as package eligibility says. If
// all nodes are dead, each replica passes them on once, and the last one marks the nodes.
func TestPlan_ShardsOfDeadNodesDoNotCirculate(t *testing.T) {
	const able = 10 * time.Second // from when few are heard until shards move
	nodes := func() *fixture {
		w := newFixture(t, 10)
		for _, name := range w.names {
			w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), RenewedByUs: true}
			w.ownership[name] = nodehealth.Ownership{}
		}
		return w
	}
	replicas := []*fixture{nodes(), nodes(), nodes()}
	hold := func(w *fixture) {
		for _, name := range w.names {
			w.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: w.now}
		}
	}
	holder, moves, few := 0, 0, time.Duration(0)
	hold(replicas[0])
	for elapsed := time.Duration(0); elapsed < 10*time.Minute; elapsed += time.Second {
		for _, w := range replicas {
			w.run(time.Second)
		}
		w := replicas[holder]
		if w.unknown() == len(w.names) {
			t.Logf("all nodes are marked after %v, by leader %d", elapsed, moves+1)
			if moves != len(replicas)-1 {
				t.Errorf("%d moves, want each replica to pass the shards on once", moves)
			}
			return
		}
		if few += time.Second; !w.cluster.HearsFew(w.now) {
			few = 0
		}
		next := slices.IndexFunc(replicas, func(other *fixture) bool { return !other.cluster.HearsFew(other.now) })
		if few < able || next < 0 {
			continue
		}
		for _, name := range w.names {
			w.ownership[name] = nodehealth.Ownership{}
		}
		hold(replicas[next])
		holder, moves, few = next, moves+1, 0
	}
	t.Errorf("dead nodes are not marked within ten minutes, with %d changes of the leader", moves)
}

// Shards move away within ten seconds of a doubt, also if the grace period of nodes is shorter.
func TestPlan_DoubtOutlastsAChangeOfTheLeader(t *testing.T) {
	w := newSessionFixture(t, 100)
	w.rules.GracePeriod = 5 * time.Second
	w.cut(w.names, nothing)
	since, until, doubts := w.cluster.ReceiverDoubt()
	if lasts := until.Sub(since); !doubts || lasts < 20*time.Second || lasts > 25*time.Second {
		t.Errorf("the doubt lasts %v, want 20s, and as much longer as few were heard later", lasts)
	}
	if got := w.unknown(); got > 0 {
		t.Errorf("%d nodes are marked during the doubt", got)
	}
}

// A rack is a part of the nodes: the beats of the others arrive, so the receiver is not doubted.
func TestPlan_DeathOfARackIsDeclaredAtOnce(t *testing.T) {
	w := newSessionFixture(t, 100)
	w.cut(w.names[:40], nothing)
	if got := w.unknown(); got != 40 {
		t.Errorf("%d nodes are marked %v after the last beat, want 40", got, sessionGrace+time.Second)
	}
}

// Most nodes of all replicas fail together: the Leases of the remaining ones contradict nothing.
func TestPlan_DeathOfMostNodesOfAllReplicasIsDeclaredAGracePeriodLater(t *testing.T) {
	w := newSessionFixture(t, 100)
	for i := range 100 {
		name := fmt.Sprintf("z%02d", i)
		w.add(name, corev1.ConditionTrue)
		w.ownership[name] = nodehealth.Ownership{Shard: 1}
	}
	elapse := func(d time.Duration) {
		for range d / (10 * time.Second) {
			for _, name := range w.names[160:] {
				w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), RenewedByUs: true}
			}
			w.run(10 * time.Second)
		}
	}
	w.cut(w.names[:60], nothing)
	elapse(w.rules.GracePeriod)
	if got := w.unknown(); got != 60 {
		t.Errorf("%d nodes are marked a grace period after 60 of 100 sessions expired, want 60", got)
	}
}

// Leases that others renew contradict the silence of sessions.
func TestPlan_RenewedLeasesExtendTheDoubt(t *testing.T) {
	for name, renew := range map[string]func(w *fixture){
		"by kubelets of silent sessions": func(w *fixture) {
			for _, name := range w.names[:25] {
				w.renew(name, 0)
			}
		},
		"for nodes of other replicas": func(w *fixture) {
			for _, name := range w.names[100:] {
				w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), RenewedByUs: true}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSessionFixture(t, 100)
			for i := range 30 {
				other := string(rune('a'+i%26)) + string(rune('a'+i/26)) + "-other"
				w.add("z"+other, corev1.ConditionTrue)
				w.ownership["z"+other] = nodehealth.Ownership{Shard: 1}
			}
			w.cut(w.names[:100], func() {
				if w.now.Sub(0)%(10*time.Second) == 0 {
					renew(w)
				}
			})
			for range 20 {
				renew(w)
				w.run(10 * time.Second)
			}
			if got := w.unknown(); got > 0 {
				t.Fatalf("%d nodes are marked although renewals show that they live", got)
			}
			for range 12 {
				renew(w)
				w.run(10 * time.Second)
			}
			if got := w.unknown(); got < 75 {
				t.Errorf("%d nodes are marked after %v, want all that do not renew", got, nodehealth.MaxReceiverDoubt)
			}
		})
	}
}

// Half of the connections are lost at once, and the silent sessions are fewer.
func TestPlan_LostConnectionsAreHeldAgainstTheReceiver(t *testing.T) {
	w := newSessionFixture(t, 100)
	w.connections = nodehealth.Connections{Open: 10, Lost: 40}
	w.cut(w.names[:40], nothing)
	w.run(25 * time.Second)
	if got := w.unknown(); got > 0 {
		t.Errorf("%d nodes are marked", got)
	}
	w.run(30 * time.Second)
	if got := w.unknown(); got != 40 {
		t.Errorf("%d nodes are marked a grace period later, want 40", got)
	}
}

// A replica takes shards over whose previous holder doubted what it received. The cause may be the
// same for all replicas, for example a certificate that they share.
func TestPlan_DoubtOutlivesATakeover(t *testing.T) {
	w := newFixture(t, 100)
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{}
	}
	w.run(time.Minute)
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: w.now}
		w.sessions[name] = session.Expired
	}
	w.run(45 * time.Second)
	if got := w.unknown(); got > 0 {
		t.Fatalf("%d nodes are marked 45s after the takeover", got)
	}
	for _, name := range w.names[:60] {
		w.sessions[name] = session.Alive
	}
	w.run(time.Minute)
	if got := w.unknown(); got != 40 {
		t.Errorf("%d nodes are marked, want the 40 that did not come back", got)
	}
}

// Nodes that died long ago are no reason to doubt.
func TestPlan_NodesThatAreMarkedRaiseNoDoubtAtATakeover(t *testing.T) {
	w := newFixture(t, 8)
	for _, name := range w.names {
		w.report(name, corev1.ConditionUnknown)
		w.sessions[name] = session.Expired
	}
	w.run(20 * time.Second)
	if since, _, doubts := w.cluster.ReceiverDoubt(); doubts {
		t.Errorf("a doubt began at %v", since)
	}
}

// At first the new leader of a shard has the silent sessions only, because living holders have not
// reached it yet.
func TestPlan_TakeoverIsNoReasonToDoubt(t *testing.T) {
	w := newFixture(t, 100)
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{}
	}
	w.run(time.Minute)
	dead := w.names[:5]
	for _, name := range w.names {
		w.ownership[name] = nodehealth.Ownership{Held: true, HeldSince: w.now}
	}
	for _, name := range dead {
		w.sessions[name] = session.Expired
	}
	w.run(4 * time.Second)
	if _, _, doubts := w.cluster.ReceiverDoubt(); doubts {
		t.Error("the replica doubts what it receives before living holders can have reached it")
	}
	for _, name := range w.names[5:] {
		w.sessions[name] = session.Alive
	}
	w.run(10 * time.Second)
	if got := w.unknown(); got != 5 {
		t.Errorf("%d nodes are marked 14s after the takeover, want the 5 whose sessions expired", got)
	}
}

// Most nodes of a replica are dead for long. That is no reason to trust the receiver when the
// sessions of the others expire together.
func TestPlan_DoubtThatIsSettledForbidsNoOther(t *testing.T) {
	w := newSessionFixture(t, 12)
	dead, others := w.names[:7], w.names[7:]
	w.cut(dead, nothing)
	w.run(w.rules.GracePeriod + time.Second)
	if got := w.unknown(); got != len(dead) {
		t.Fatalf("%d nodes are marked, want %d", got, len(dead))
	}
	if since, _, doubts := w.cluster.ReceiverDoubt(); doubts {
		t.Errorf("the doubt since %v goes on, although its nodes are declared", since)
	}
	w.run(5 * time.Minute)
	w.cut(others, nothing)
	w.run(20 * time.Second)
	if got := w.unknown(); got != len(dead) {
		t.Errorf("%d nodes are marked after the other sessions expired together, want %d", got, len(dead))
	}
	w.run(w.rules.GracePeriod)
	if got := w.unknown(); got != len(w.names) {
		t.Errorf("%d nodes are marked a grace period later, want all", got)
	}
}
