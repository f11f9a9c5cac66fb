package slicecontroller_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// TestRun_AfterAnyChurnSlicesAreExact combines everything: changes of Pods, Nodes and Services,
// edits of another writer, refused writes, paused watches, and shards that move between replicas.
// Once changes stop, the slices must be exact.
func TestRun_AfterAnyChurnSlicesAreExact(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("replicas=%d/seed=%d", replicas, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					compacting := func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 20 * time.Millisecond }
					_, cluster := start(t, compacting)
					for range replicas - 1 {
						cluster.join(t, compacting)
					}
					churn := newChurn(t, cluster, seed)
					for range 300 {
						churn.step(t)
					}
					churn.settle(t)
					advance(5 * time.Minute)
					checkExact(t, cluster)
				})
			})
		}
	}
}

type churn struct {
	random    *rand.Rand
	cluster   *fakeCluster
	resumes   []func() // of the paused watches, by replica
	terms     [shards]term
	recreated int
}

func newChurn(t *testing.T, cluster *fakeCluster, seed uint64) *churn {
	s := &churn{random: rand.New(rand.NewPCG(seed, 0)), cluster: cluster}
	for range cluster.replicas {
		s.resumes = append(s.resumes, func() {})
	}
	for number := range s.terms {
		s.terms[number] = holdShards(t, s.replica().Controller, number)
	}
	return s
}

func (s *churn) replica() *replica { return s.cluster.replicas[s.random.IntN(len(s.cluster.replicas))] }

// put sends an event, other than of a slice, to every replica.
func (s *churn) put(event func(*slicecontroller.Controller)) {
	for _, r := range s.cluster.replicas {
		event(r.Controller)
	}
}

func (s *churn) step(t *testing.T) {
	switch s.random.IntN(13) {
	case 0, 1, 2, 3:
		pod := s.pod()
		s.put(func(controller *slicecontroller.Controller) { controller.PutPod(pod) })
	case 4, 5:
		pod := s.pod()
		s.put(func(controller *slicecontroller.Controller) { controller.DeletePod(pod) })
	case 6:
		changed := node(s.pick("node-a", "node-b"), s.pick("zone-a", "zone-b"))
		s.put(func(controller *slicecontroller.Controller) { controller.PutNode(changed) })
	case 7:
		deleted := node(s.pick("node-a", "node-b"), "")
		s.put(func(controller *slicecontroller.Controller) { controller.DeleteNode(deleted) })
	case 8:
		s.service()
	case 9:
		s.editSlice()
	case 10:
		s.refuse()
	case 11:
		s.pauseWatch()
	case 12:
		s.moveShard(t)
	}
	time.Sleep(time.Duration(s.random.IntN(20)) * time.Millisecond)
}

// pauseWatch resumes the watch of a replica, or pauses it.
func (s *churn) pauseWatch() {
	number := s.random.IntN(len(s.resumes))
	s.resumes[number]()
	s.resumes[number] = func() {}
	if s.random.IntN(3) == 0 {
		s.resumes[number] = s.cluster.replicas[number].pauseEvents()
	}
}

// moveShard gives a shard to any replica.
func (s *churn) moveShard(t *testing.T) {
	number := s.random.IntN(shards)
	s.terms[number].end()
	time.Sleep(time.Duration(s.random.IntN(3)) * time.Millisecond)
	s.terms[number] = holdShards(t, s.replica().Controller, number)
}

func (s *churn) pick(among ...string) string { return among[s.random.IntN(len(among))] }

func (s *churn) pod() *corev1.Pod {
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

func (s *churn) service() {
	name := s.pick("web", "api")
	if s.random.IntN(3) == 0 {
		s.put(func(controller *slicecontroller.Controller) { controller.DeleteService(slicetest.Service(name)) })
		s.recreated++
	}
	service := slicetest.Service(name, func(service *corev1.Service) {
		service.UID = types.UID(fmt.Sprintf("%s-%d", name, s.recreated))
		service.Labels = map[string]string{"recreated": fmt.Sprint(s.recreated)}
		service.Spec.PublishNotReadyAddresses = s.random.IntN(2) == 0
		switch s.random.IntN(3) {
		case 0:
			service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		case 1:
			near := corev1.ServiceTrafficDistributionPreferSameZone
			service.Spec.TrafficDistribution = &near
		}
	})
	s.put(func(controller *slicecontroller.Controller) { controller.PutService(service) })
}

// editSlice edits or deletes a slice as another writer.
func (s *churn) editSlice() {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	for name, slice := range s.cluster.slices {
		if s.random.IntN(2) == 0 {
			s.cluster.remove(name)
			return
		}
		edited := slice.DeepCopy()
		edited.Endpoints = append(edited.Endpoints, edited.Endpoints...)
		edited.Labels["foreign"] = "yes"
		s.cluster.store(edited)
		return
	}
}

func (s *churn) refuse() {
	errs := []error{nil, errBusy, kube.ErrConflict}
	err := errs[s.random.IntN(len(errs))]
	left := s.random.IntN(5)
	s.cluster.refuseWith(func(pack.Change) error {
		if left--; left < 0 {
			return nil
		}
		return err
	})
}

// settle ends all failures and puts a known state.
func (s *churn) settle(t *testing.T) {
	for _, resume := range s.resumes {
		resume()
	}
	s.cluster.refuseWith(nil)
	s.put(func(controller *slicecontroller.Controller) {
		for _, name := range []string{"web", "api"} {
			controller.PutService(slicetest.Service(name))
		}
		for _, name := range []string{"node-a", "node-b"} {
			controller.PutNode(node(name, "zone-a"))
		}
		for i := range 12 {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("pod-%d", i), slicetest.Address(i), func(pod *corev1.Pod) {
				pod.Labels["app"] = []string{"web", "api"}[i%2]
			}))
		}
		if _, ok := controller.State(key("web")); !ok {
			t.Fatal("the Services are gone")
		}
	})
}

func checkExact(t *testing.T, cluster *fakeCluster) {
	t.Helper()
	cluster.takeWrites()
	for _, r := range cluster.replicas {
		for _, name := range []string{"web", "api"} {
			preview, _ := r.Preview(key(name))
			if !preview.Plan.Empty() || preview.CatchingUp {
				t.Errorf("%s: a plan is left after the changes: %+v", name, preview)
			}
			state, _ := r.State(key(name))
			if state.History.LastError != "" {
				t.Errorf("%s: last error is %q", name, state.History.LastError)
			}
		}
	}
	if got := len(cluster.endpoints(t)); got != 12 {
		t.Errorf("%d endpoints, want 12", got)
	}
	advance(time.Hour)
	if got := cluster.takeWrites(); got != 0 {
		t.Errorf("%d writes while nothing changed, want none", got)
	}
}
