package eviction_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

func names(plan eviction.Plan) []string {
	var all []string
	for _, e := range plan.Evictions {
		all = append(all, e.Pod.Name)
	}
	return all
}

// pendingOn returns a Node with Pods that are due at the given seconds for a taint.
func pendingOn(t *testing.T, taint string, due map[string]int64) eviction.NodeEvictions {
	t.Helper()
	var all []*corev1.Pod
	for name, at := range due {
		all = append(all, newPod(name, tolerates(taint, at)))
	}
	return after(t, observed{node: newNode()}, observed{node: newNode(noExecute(taint)), pods: all})
}

func TestPlan_PodThatWasDueFirstLeavesFirst(t *testing.T) {
	state := eviction.State{Nodes: map[string]eviction.NodeEvictions{
		"n1": pendingOn(t, "a", map[string]int64{"late": 50, "first": 10, "not yet": 100}),
		"n2": pendingOn(t, "a", map[string]int64{"second": 20, "busy": 5, "failed": 6}),
		"n3": {},
	}, Paused: map[types.UID]monotonic.Instant{"uid-of-busy": 1 << 62, "uid-of-failed": 60 * seconds}}
	plan := eviction.Rules{}.Plan(60*seconds, state, 100)
	if diff := cmp.Diff([]string{"failed", "first", "second", "late"}, names(plan)); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
	if plan.Waiting != 1 || plan.Due != 5 || plan.Held != 0 {
		t.Errorf("%d waiting, %d due, %d held; want 1, 5, 0", plan.Waiting, plan.Due, plan.Held)
	}
	plan = eviction.Rules{}.Plan(60*seconds, state, 2)
	if diff := cmp.Diff([]string{"failed", "first"}, names(plan)); diff != "" {
		t.Errorf("evicted with a limit of two (-want +got):\n%s", diff)
	}
}

// With any limit the Pods that leave are the first of those that leave without a limit.
func TestPlan_LimitDoesNotChangeTheOrder(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		state := eviction.State{Nodes: map[string]eviction.NodeEvictions{}, Paused: map[types.UID]monotonic.Instant{}, Unreliable: r.IntN(3) == 0}
		for i := range 5 {
			var all []*corev1.Pod
			for j := range r.IntN(40) {
				name := fmt.Sprintf("p%d-%d", i, j)
				all = append(all, newPod(name, tolerates("a", r.Int64N(8)), tolerates(corev1.TaintNodeUnreachable, r.Int64N(8))))
				if r.IntN(5) == 0 {
					state.Paused[all[j].UID] = 1 << 62
				}
			}
			node := fmt.Sprintf("n%d", i)
			state.Nodes[node] = after(t, observed{node: newNode()}, observed{node: newNode(noExecute("a"), noExecute(corev1.TaintNodeUnreachable)), pods: all})
		}
		all := names(eviction.Rules{}.Plan(5*seconds, state, 1000))
		for _, limit := range []int{0, 1, 3, 7, 20} {
			want := all[:min(limit, len(all))]
			if diff := cmp.Diff(want, names(eviction.Rules{}.Plan(5*seconds, state, limit)), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d, limit %d (-want +got):\n%s", seed, limit, diff)
			}
		}
	}
}

func TestPlan_UnreliableHealthTaintsDoNotEvict(t *testing.T) {
	const down = corev1.TaintNodeUnreachable
	on := pods(
		newPod("only-down", tolerates("a")), newPod("both"), newPod("a-later", tolerates("a", 60)), newPod("a-first", tolerates(down, 60)),
	)
	w := after(t, observed{node: newNode(), pods: on}, observed{node: newNode(noExecute(down), noExecute("a")), pods: on})
	state := eviction.State{Nodes: map[string]eviction.NodeEvictions{"n": w}, Unreliable: true}
	plan := eviction.Rules{}.Plan(10*seconds, state, 100)
	if diff := cmp.Diff([]string{"a-first", "both"}, names(plan)); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
	for _, e := range plan.Evictions {
		if e.Taint.Key != "a" {
			t.Errorf("%s is evicted for %s", e.Pod.Name, e.Taint.Key)
		}
	}
	if diff := cmp.Diff([]string{"n"}, plan.HeldOn); diff != "" || plan.Held != 2 {
		t.Errorf("%d held on %v, want 2 on n", plan.Held, plan.HeldOn)
	}
	if got := names(eviction.Rules{}.Plan(60*seconds, state, 100)); !slices.Contains(got, "a-later") {
		t.Errorf("evicted are %v, want a-later among them: its other taint is due", got)
	}
	state.Unreliable = false
	if got := names(eviction.Rules{}.Plan(10*seconds, state, 100)); len(got) != 4 {
		t.Errorf("evicted without a doubt are %v, want all", got)
	}
}

func TestPlan_KeepsItsRateInEveryWindow(t *testing.T) {
	due := map[string]int64{}
	for i := range 600 {
		due[fmt.Sprintf("p%d", i)] = 0
	}
	for _, rate := range []float64{0.5, 7, 100} {
		rules := eviction.Rules{Rate: rate}
		state := eviction.State{Nodes: map[string]eviction.NodeEvictions{"n": pendingOn(t, "a", due)}, Paused: map[types.UID]monotonic.Instant{}}
		var left []monotonic.Instant
		for now := monotonic.Instant(0); now < 5*seconds; now = now.Add(50 * time.Millisecond) {
			plan := rules.Plan(now, state, 1000)
			state.RateLimit = plan.RateLimit
			for _, e := range plan.Evictions {
				state.Paused[e.Pod.UID] = 1 << 62
				left = append(left, now)
			}
		}
		if want := int(5 * rate); len(left) < want-1-int(rate/10) || len(left) > want+1 {
			t.Errorf("at %v a second, %d left in 5 s, want %d", rate, len(left), want)
		}
		for i, first := range left {
			for j := i; j < len(left); j++ {
				if window := left[j].Sub(first) + 100*time.Millisecond; float64(j-i) > rate*window.Seconds()+1e-6 {
					t.Fatalf("at %v a second, %d left within %v", rate, j-i+1, window)
				}
			}
		}
	}
}

func TestPlan_LongPauseAllowsNoBurst(t *testing.T) {
	rules := eviction.Rules{Rate: 10}
	state := eviction.State{Nodes: map[string]eviction.NodeEvictions{"n": pendingOn(t, "a", map[string]int64{"p0": 0})}}
	state.RateLimit = rules.Plan(0, state, 10).RateLimit
	due := map[string]int64{}
	for i := range 50 {
		due[fmt.Sprintf("p%d", i)] = 0
	}
	state.Nodes["n"] = pendingOn(t, "a", due)
	if got := names(rules.Plan(3600*seconds, state, 1000)); len(got) > 2 {
		t.Errorf("%d left at once after an hour, want 2 at most", len(got))
	}
}

func TestHolds_OnlyIfTheNodeStillHasTheTaint(t *testing.T) {
	const down, gone = corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	pod := scheduled(newPod("p", tolerates("a", 10), tolerates(down, 10), tolerates(gone, 10)), -1000*seconds)
	evict := func(key string) *eviction.Eviction {
		w := after(t, observed{node: newNode(), pods: pods(pod)}, observed{node: newNode(added(key, 0)), pods: pods(pod)})
		plan := eviction.Rules{}.Plan(20*seconds, eviction.State{Nodes: map[string]eviction.NodeEvictions{"n": w}}, 1)
		return &plan.Evictions[0]
	}
	for name, c := range map[string]struct {
		eviction *eviction.Eviction
		live     *corev1.Node
		holds    bool
	}{
		"it says the same":                       {eviction: evict("a"), live: newNode(added("a", 0)), holds: true},
		"the taint is gone":                      {eviction: evict("a"), live: newNode()},
		"the taint came anew":                    {eviction: evict("a"), live: newNode(added("a", 15*seconds))},
		"another taint came, which is not due":   {eviction: evict("a"), live: newNode(noExecute("a2"), noExecute("a")), holds: true},
		"it is another Node":                     {eviction: evict("a"), live: anotherNode(added("a", 0))},
		"it is down in another way":              {eviction: evict(down), live: newNode(added(gone, 15*seconds)), holds: true},
		"only a taint that is doubted is left":   {eviction: evict("a"), live: newNode(added(down, 0))},
		"it was down and has a taint of others":  {eviction: evict(down), live: newNode(noExecute("unknown")), holds: true},
		"it was down and has a tolerated taint":  {eviction: evict(down), live: newNode(noExecute("a"))},
		"the taint has only another effect left": {eviction: evict("a"), live: newNode(corev1.Taint{Key: "a", Value: "v", Effect: corev1.TaintEffectNoSchedule})},
	} {
		if got := c.eviction.Holds(20*seconds, wall(20*seconds), c.live); got != c.holds {
			t.Errorf("%s: holds %v, want %v", name, got, c.holds)
		}
	}
}
