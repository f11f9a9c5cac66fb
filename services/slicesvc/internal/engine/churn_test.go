package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/engine"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// TestRun_AfterAnyChurnSlicesAreExact lets everything happen at once, pods,
// nodes and Services that come, change and go, others who edit our slices,
// refused writes, watches that stand still, terms that end, and looks at the
// outcome after quiet.
func TestRun_AfterAnyChurnSlicesAreExact(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, api := start(t)
				storm := &storm{
					random: rand.New(rand.NewPCG(seed, 0)),
					engine: e,
					api:    api,
					thaw:   func() {},
					term:   lead(t, e),
				}
				for range 300 {
					storm.step(t)
				}
				storm.calm(t)
				settle(5 * time.Minute)
				checkExact(t, e, api)
			})
		})
	}
}

type storm struct {
	random *rand.Rand
	engine *engine.Engine
	api    *apiserver
	thaw   func()
	term   term
	made   int
}

func (s *storm) step(t *testing.T) {
	switch s.random.IntN(13) {
	case 0, 1, 2, 3:
		s.engine.PutPod(s.pod())
	case 4, 5:
		s.engine.DeletePod(s.pod())
	case 6:
		s.engine.PutNode(node(s.pick("node-a", "node-b"), s.pick("zone-a", "zone-b")))
	case 7:
		s.engine.DeleteNode(node(s.pick("node-a", "node-b"), ""))
	case 8:
		s.service()
	case 9:
		s.meddle()
	case 10:
		s.refuse()
	case 11:
		s.thaw()
		s.thaw = func() {}
		if s.random.IntN(3) == 0 {
			s.thaw = s.api.freeze()
		}
	case 12:
		if s.random.IntN(5) == 0 {
			s.term.end()
			s.term = lead(t, s.engine)
		}
	}
	time.Sleep(time.Duration(s.random.IntN(20)) * time.Millisecond)
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
		s.engine.DeleteService(slicetest.Service(name))
		s.made++
	}
	s.engine.PutService(slicetest.Service(name, func(service *corev1.Service) {
		service.UID = types.UID(fmt.Sprintf("%s-%d", name, s.made))
		service.Labels = map[string]string{"made": fmt.Sprint(s.made)}
		service.Spec.PublishNotReadyAddresses = s.random.IntN(2) == 0
	}))
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
	refusals := []error{nil, errBusy, apply.ErrConflict}
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
	s.thaw()
	s.api.refuseWith(nil)
	for _, name := range []string{"web", "api"} {
		s.engine.PutService(slicetest.Service(name))
	}
	for _, name := range []string{"node-a", "node-b"} {
		s.engine.PutNode(node(name, "zone-a"))
	}
	for i := range 12 {
		s.engine.PutPod(slicetest.Pod(fmt.Sprintf("pod-%d", i), slicetest.Address(i), func(pod *corev1.Pod) {
			pod.Labels["app"] = []string{"web", "api"}[i%2]
		}))
	}
	if _, ok := s.engine.State(key("web")); !ok {
		t.Fatal("no Service is left")
	}
}

func checkExact(t *testing.T, e *engine.Engine, api *apiserver) {
	t.Helper()
	api.took()
	for _, name := range []string{"web", "api"} {
		preview, _ := e.Preview(key(name))
		if !preview.Plan.Empty() || preview.Behind {
			t.Errorf("%s: after quiet there is still to do: %+v", name, preview)
		}
		state, _ := e.State(key(name))
		if state.History.LastError != "" {
			t.Errorf("%s: last error is %q", name, state.History.LastError)
		}
	}
	seen := map[string]bool{}
	api.mu.Lock()
	for _, slice := range api.slices {
		for _, endpoint := range slice.Endpoints {
			at := slice.Labels[discoveryv1.LabelServiceName] + " " + endpoint.Addresses[0]
			if seen[at] {
				t.Errorf("%s is there twice", at)
			}
			seen[at] = true
		}
	}
	api.mu.Unlock()
	if len(seen) != 12 {
		t.Errorf("%d endpoints, want 12: %v", len(seen), seen)
	}
	settle(time.Hour)
	if got := api.took(); got != 0 {
		t.Errorf("%d writes while nothing changed, want none", got)
	}
}
