package pack_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// rollout is a Service whose Pods are all replaced, some in each step.
type rollout struct {
	t       *testing.T
	service *corev1.Service
	random  *rand.Rand

	old, fresh []desired.Candidate
	// slices and writes are those of Make; upstream and upstreamWrites those of upstream's policy.
	slices                 []*discoveryv1.EndpointSlice
	writes, upstreamWrites int
	upstream               [][]desired.Endpoint
}

func newRollout(t *testing.T, pods int, seed uint64) *rollout {
	r := &rollout{
		t:       t,
		service: slicetest.Service("web"),
		random:  rand.New(rand.NewPCG(seed, 1)),
	}
	for i := range pods {
		r.old = append(r.old, slicetest.Candidate(slicetest.Pod(fmt.Sprintf("old-%d", i), slicetest.Address(i), revision("old"))))
	}
	r.sync()
	r.writes, r.upstreamWrites = 0, 0
	return r
}

// revision sets the label by which Pods have the affinity of their revision.
func revision(hash string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels["pod-template-hash"] = hash }
}

func (r *rollout) input() pack.Input {
	return input(r.service, slices.Concat(r.old, r.fresh), r.slices...)
}

// sync applies the plans of both policies.
func (r *rollout) sync() {
	in := r.input()
	r.apply(pack.Make(in))
	var writes int
	r.upstream, writes = upstreamStep(r.upstream, in.Endpoints.Families[0].Groups[0].Endpoints, in.Limit)
	r.upstreamWrites += writes
}

func (r *rollout) apply(plan pack.Plan) {
	r.t.Helper()
	r.slices = apply(r.t, r.slices, plan.Changes)
	r.writes += len(plan.Changes)
}

// run replaces all Pods in steps of batch Pods. In every step new Pods appear, the Pods of the last
// step become ready, as many random old Pods begin to terminate, and terminating Pods go.
func (r *rollout) run(batch int) {
	pods := len(r.old)
	r.random.Shuffle(len(r.old), func(i, j int) { r.old[i], r.old[j] = r.old[j], r.old[i] })
	ready, going := 0, 0
	for len(r.old) > 0 {
		r.old, going = r.old[going:], 0
		for ; ready < len(r.fresh); ready++ {
			r.fresh[ready].Pod.Status.Conditions[0].Status = corev1.ConditionTrue
			slicetest.Terminating(r.old[going].Pod)
			going++
		}
		for i := ready; i < min(ready+batch, pods); i++ {
			pod := slicetest.Pod(fmt.Sprintf("new-%d", i), slicetest.Address(pods+i), revision("new"), slicetest.Unready)
			r.fresh = append(r.fresh, slicetest.Candidate(pod))
		}
		r.sync()
	}
}

func (r *rollout) compact(budget int) {
	for {
		plan := pack.Compact(r.input(), budget)
		if plan.Empty() {
			return
		}
		r.apply(plan)
		r.apply(pack.Repeat(r.input(), 1000))
	}
}

// Old Pods go at random, as the Pods of a ReplicaSet do. They cause most of the writes, which no
// placement can save. Compaction follows.
func TestMake_RolloutWritesNoMoreThanUpstream(t *testing.T) {
	for _, c := range []struct{ services, pods, batch int }{
		{services: 2, pods: 100, batch: 1},
		{services: 50, pods: 100, batch: 5},
		{services: 50, pods: 100, batch: 25},
		{services: 1, pods: 2000, batch: 10},
		{services: 1, pods: 5000, batch: 100},
		{services: 1, pods: 5000, batch: 500},
	} {
		t.Run(fmt.Sprintf("%dx%d by %d", c.services, c.pods, c.batch), func(t *testing.T) {
			ideal := c.services * ((c.pods + 99) / 100)
			var writes, compacting, upstreamWrites, left, compacted, upstream int
			for service := range c.services {
				r := newRollout(t, c.pods, uint64(service))
				r.run(c.batch)
				writes += r.writes
				upstreamWrites += r.upstreamWrites
				left += len(r.slices)
				upstream += len(r.upstream)
				r.compact(20)
				compacting += r.writes
				compacted += len(r.slices)
			}
			t.Logf("ideal %d slices; upstream's policy: %d writes, %d slices left; Make: %d writes, %d left, and with %d more writes %d",
				ideal, upstreamWrites, upstream, writes, left, compacting-writes, compacted)
			if writes*100 > upstreamWrites*101 || left > upstream { // steps differ by chance once the slices do
				t.Errorf("%d writes leave %d slices, upstream's policy needs %d and leaves %d", writes, left, upstreamWrites, upstream)
			}
			if compacted*5 > ideal*6 {
				t.Errorf("%d slices are left, more than 1.2 times the ideal %d", compacted, ideal)
			}
		})
	}
}

// The Pods of two workloads behind one Service have mixed addresses. A restart of one workload must
// touch only its own slices.
func TestMake_PodsOfOneAffinityShareSlices(t *testing.T) {
	service := slicetest.Service("web")
	var pods []desired.Candidate
	for i := range 1000 {
		workload := []string{"blue", "green"}[i%2]
		pod := slicetest.Pod(fmt.Sprintf("%s-%d", workload, i), slicetest.Address(i), revision(workload))
		pods = append(pods, slicetest.Candidate(pod))
	}
	in := input(service, pods)
	in.Slices = apply(t, nil, pack.Make(in).Changes)
	for i := 0; i < len(pods); i += 2 {
		slicetest.Unready(pods[i].Pod)
	}
	in.Endpoints = desired.Resolve(service, pods)
	if plan := pack.Make(in); len(plan.Changes) != 5 {
		t.Errorf("%d slices are written, want the 5 of one workload", len(plan.Changes))
	}
}
