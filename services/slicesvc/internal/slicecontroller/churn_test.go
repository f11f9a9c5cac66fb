package slicecontroller_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// TestRun_AfterAnyChurnSlicesAreExact lets everything happen at once, pods,
// nodes and Services that come, change and go, others who edit our slices,
// refused writes, watches that stand still, shards that are lost and move between
// replicas, and looks at the outcome after quiet.
func TestRun_AfterAnyChurnSlicesAreExact(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("replicas=%d/seed=%d", replicas, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					compacting := func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 20 * time.Millisecond }
					_, api := start(t, compacting)
					for range replicas - 1 {
						api.join(t, compacting)
					}
					storm := newStorm(t, api, seed)
					for range 300 {
						storm.step(t)
					}
					storm.calm(t)
					settle(5 * time.Minute)
					checkExact(t, api)
				})
			})
		}
	}
}

type storm struct {
	random *rand.Rand
	api    *apiserver
	thaws  []func() // of the replicas
	terms  [shards]term
	made   int
}

func newStorm(t *testing.T, api *apiserver, seed uint64) *storm {
	s := &storm{random: rand.New(rand.NewPCG(seed, 0)), api: api}
	for range api.replicas {
		s.thaws = append(s.thaws, func() {})
	}
	for number := range s.terms {
		s.terms[number] = hold(t, s.replica().Engine, number)
	}
	return s
}

func (s *storm) replica() *replica { return s.api.replicas[s.random.IntN(len(s.api.replicas))] }

// put tells every replica of something that is not a slice.
func (s *storm) put(news func(*slicecontroller.Engine)) {
	for _, r := range s.api.replicas {
		news(r.Engine)
	}
}

func (s *storm) step(t *testing.T) {
	switch s.random.IntN(13) {
	case 0, 1, 2, 3:
		pod := s.pod()
		s.put(func(e *slicecontroller.Engine) { e.PutPod(pod) })
	case 4, 5:
		pod := s.pod()
		s.put(func(e *slicecontroller.Engine) { e.DeletePod(pod) })
	case 6:
		changed := node(s.pick("node-a", "node-b"), s.pick("zone-a", "zone-b"))
		s.put(func(e *slicecontroller.Engine) { e.PutNode(changed) })
	case 7:
		gone := node(s.pick("node-a", "node-b"), "")
		s.put(func(e *slicecontroller.Engine) { e.DeleteNode(gone) })
	case 8:
		s.service()
	case 9:
		s.meddle()
	case 10:
		s.refuse()
	case 11:
		s.freeze()
	case 12:
		s.move(t)
	}
	time.Sleep(time.Duration(s.random.IntN(20)) * time.Millisecond)
}

// freeze lets the watch of one replica run, and now and then stands it still.
func (s *storm) freeze() {
	number := s.random.IntN(len(s.thaws))
	s.thaws[number]()
	s.thaws[number] = func() {}
	if s.random.IntN(3) == 0 {
		s.thaws[number] = s.api.replicas[number].freeze()
	}
}

// move takes a shard from whoever holds it and gives it to anybody.
func (s *storm) move(t *testing.T) {
	number := s.random.IntN(shards)
	s.terms[number].end()
	time.Sleep(time.Duration(s.random.IntN(3)) * time.Millisecond)
	s.terms[number] = hold(t, s.replica().Engine, number)
}

func (s *storm) pick(among ...string) string { return among[s.random.IntN(len(among))] }

func (s *storm) pod() *corev1.Pod {
	i := s.random.IntN(12)
	return slicetest.Pod(fmt.Sprintf("pod-%d", i), slicetest.Address(i), func(pod *corev1.Pod) {
		pod.Labels["app"] = s.pick("web", "api")
		pod.Spec.NodeName = s.pick("node-a", "node-b")
		if s.random.IntN(2) == 0 {
			slicetest.Unready(pod)
		}
		if s.random.IntN(4) == 0 {
			slicetest.Terminating(pod)
		}
	})
}

func (s *storm) service() {
	name := s.pick("web", "api")
	if s.random.IntN(3) == 0 {
		s.put(func(e *slicecontroller.Engine) { e.DeleteService(slicetest.Service(name)) })
		s.made++
	}
	service := slicetest.Service(name, func(service *corev1.Service) {
		service.UID = types.UID(fmt.Sprintf("%s-%d", name, s.made))
		service.Labels = map[string]string{"made": fmt.Sprint(s.made)}
		service.Spec.PublishNotReadyAddresses = s.random.IntN(2) == 0
		switch s.random.IntN(3) {
		case 0:
			service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		case 1:
			near := corev1.ServiceTrafficDistributionPreferSameZone
			service.Spec.TrafficDistribution = &near
		}
	})
	s.put(func(e *slicecontroller.Engine) { e.PutService(service) })
}

// meddle edits or deletes one of our slices.
func (s *storm) meddle() {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	for name, slice := range s.api.slices {
		if s.random.IntN(2) == 0 {
			s.api.remove(name)
			return
		}
		edited := slice.DeepCopy()
		edited.Endpoints = append(edited.Endpoints, edited.Endpoints...)
		edited.Labels["stranger"] = "yes"
		s.api.store(edited)
		return
	}
}

func (s *storm) refuse() {
	refusals := []error{nil, errBusy, kube.ErrConflict}
	refusal := refusals[s.random.IntN(len(refusals))]
	left := s.random.IntN(5)
	s.api.refuseWith(func(pack.Change) error {
		if left--; left < 0 {
			return nil
		}
		return refusal
	})
}

// calm ends all trouble and makes sure that there is something to show.
func (s *storm) calm(t *testing.T) {
	for _, thaw := range s.thaws {
		thaw()
	}
	s.api.refuseWith(nil)
	s.put(func(e *slicecontroller.Engine) {
		for _, name := range []string{"web", "api"} {
			e.PutService(slicetest.Service(name))
		}
		for _, name := range []string{"node-a", "node-b"} {
			e.PutNode(node(name, "zone-a"))
		}
		for i := range 12 {
			e.PutPod(slicetest.Pod(fmt.Sprintf("pod-%d", i), slicetest.Address(i), func(pod *corev1.Pod) {
				pod.Labels["app"] = []string{"web", "api"}[i%2]
			}))
		}
		if _, ok := e.State(key("web")); !ok {
			t.Fatal("no Service is left")
		}
	})
}

func checkExact(t *testing.T, api *apiserver) {
	t.Helper()
	api.took()
	for _, r := range api.replicas {
		for _, name := range []string{"web", "api"} {
			preview, _ := r.Preview(key(name))
			if !preview.Plan.Empty() || preview.Behind {
				t.Errorf("%s: after quiet there is still to do: %+v", name, preview)
			}
			state, _ := r.State(key(name))
			if state.History.LastError != "" {
				t.Errorf("%s: last error is %q", name, state.History.LastError)
			}
		}
	}
	if got := len(endpointsOf(t, api)); got != 12 {
		t.Errorf("%d endpoints, want 12", got)
	}
	settle(time.Hour)
	if got := api.took(); got != 0 {
		t.Errorf("%d writes while nothing changed, want none", got)
	}
}

// endpointsOf gives Service and address of all endpoints, each of which must be
// there once.
func endpointsOf(t *testing.T, api *apiserver) map[string]bool {
	t.Helper()
	api.mu.Lock()
	defer api.mu.Unlock()
	seen := map[string]bool{}
	for _, slice := range api.slices {
		for _, endpoint := range slice.Endpoints {
			at := slice.Labels[discoveryv1.LabelServiceName] + " " + endpoint.Addresses[0]
			if seen[at] {
				t.Errorf("%s is there twice", at)
			}
			seen[at] = true
		}
	}
	return seen
}
