package pack_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// rollout is a Service whose pods are all replaced, in windows of time.
type rollout struct {
	t       *testing.T
	service *corev1.Service
	random  *rand.Rand

	old, fresh []desired.Candidate
	// slices are those of our policy, with writes made so far; theirs of upstream's.
	slices              []*discoveryv1.EndpointSlice
	writes, theirWrites int
	theirs              [][]desired.Endpoint
}

func newRollout(t *testing.T, pods int, seed uint64) *rollout {
	r := &rollout{
		t:       t,
		service: slicetest.Service("web"),
		random:  rand.New(rand.NewPCG(seed, 1)),
	}
	for i := range pods {
		r.old = append(r.old, slicetest.Candidate(slicetest.Pod(fmt.Sprintf("old-%d", i), slicetest.Address(i))))
	}
	r.sync()
	r.writes, r.theirWrites = 0, 0
	return r
}

func (r *rollout) input() pack.Input {
	in := input(r.service, slices.Concat(r.old, r.fresh), r.slices...)
	in.Affinity = func(pod string) uint32 {
		if strings.HasPrefix(pod, "old") {
			return 1
		}
		return 2
	}
	return in
}

// sync carries out what both policies make of the pods as they are.
func (r *rollout) sync() {
	in := r.input()
	r.carryOut(pack.Make(in))
	var writes int
	r.theirs, writes = upstreamStep(r.theirs, in.Endpoints.Families[0].Groups[0].Endpoints, in.Limit)
	r.theirWrites += writes
}

func (r *rollout) carryOut(plan pack.Plan) {
	r.t.Helper()
	var err error
	if r.slices, err = slicetest.CarryOut(r.slices, plan); err != nil {
		r.t.Fatal(err)
	}
	r.writes += len(plan.Changes)
}

// run replaces all pods. In every window new pods appear, those of the window
// before become ready while as many old ones, anywhere, begin to go, and those
// that were going are gone.
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
			pod := slicetest.Pod(fmt.Sprintf("new-%d", i), slicetest.Address(pods+i))
			slicetest.Unready(pod)
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
		r.carryOut(plan)
	}
}

// Every pod is replaced, compaction included. Old pods go at random, as those of
// a ReplicaSet do, so most writes are theirs and no placement can save them.
func TestMake_RolloutsCostNoMoreThanUpstreams(t *testing.T) {
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
			var writes, compacting, theirWrites, left, compacted, theirs int
			for service := range c.services {
				r := newRollout(t, c.pods, uint64(service))
				r.run(c.batch)
				writes += r.writes
				theirWrites += r.theirWrites
				left += len(r.slices)
				theirs += len(r.theirs)
				r.compact(20)
				compacting += r.writes
				compacted += len(r.slices)
			}
			t.Logf("ideal %d slices; upstream's policy: %d writes, %d slices left; ours: %d writes, %d left, and with %d more writes %d",
				ideal, theirWrites, theirs, writes, left, compacting-writes, compacted)
			if writes*100 > theirWrites*101 || left > theirs { // windows differ by chance once the slices do
				t.Errorf("%d writes leave %d slices, upstream's policy needs %d and leaves %d", writes, left, theirWrites, theirs)
			}
			if compacted*5 > ideal*6 {
				t.Errorf("%d slices are left, more than 1.2 times the ideal %d", compacted, ideal)
			}
		})
	}
}

// Two workloads behind one Service, their addresses mixed as a cluster hands
// them out. Restarting one of them touches its own slices only.
func TestMake_WorkloadsThatCameTogetherStayTogether(t *testing.T) {
	service := slicetest.Service("web")
	var pods []desired.Candidate
	for i := range 1000 {
		pods = append(pods, slicetest.Candidate(slicetest.Pod(fmt.Sprintf("%s-%d", []string{"blue", "green"}[i%2], i), slicetest.Address(i))))
	}
	in := input(service, pods)
	in.Affinity = func(pod string) uint32 { return uint32(pod[0]) }
	var err error
	if in.Slices, err = slicetest.CarryOut(nil, pack.Make(in)); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pods); i += 2 {
		slicetest.Unready(pods[i].Pod)
	}
	in.Endpoints = desired.Resolve(service, pods)
	if plan := pack.Make(in); len(plan.Changes) != 5 {
		t.Errorf("%d slices are written, want the 5 of one workload", len(plan.Changes))
	}
}
