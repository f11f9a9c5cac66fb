package pack_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// world is one Service with its pods and slices, and what a Placement knows of it.
type world struct {
	random  *rand.Rand
	service *corev1.Service
	pods    map[string]desired.Candidate
	slices  []*discoveryv1.EndpointSlice
	limit   int

	placement *pack.Placement
	changed   map[string]struct{}
	// parts and wholes count plans that were made from a part, and all of them.
	parts, wholes int
}

// TestPlan_IsThatOfTheWhole lets pods of every kind come, change and go through
// thousands of steps, several between two plans, with Services that change and
// others who meddle, and holds every plan from a part against that from the whole.
func TestPlan_IsThatOfTheWhole(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w := &world{
				random:  rand.New(rand.NewPCG(seed, 0)),
				pods:    map[string]desired.Candidate{},
				limit:   []int{1, 2, 3, 4, 5, 8, 12, 20}[seed],
				changed: map[string]struct{}{},
			}
			w.serve()
			for range 2000 {
				w.step()
				w.plan(t)
				if t.Failed() {
					return
				}
			}
			if w.parts < 1000 || len(w.slices) == 0 {
				t.Errorf("%d plans from a part, %d from the whole, %d slices: too little was tried", w.parts, w.wholes, len(w.slices))
			}
		})
	}
}

func (w *world) step() {
	switch kind := w.random.IntN(100); {
	case kind < 1:
		w.serve()
	case kind < 3:
		w.meddle()
	case kind < 6: // nearly everybody goes, so that groups and families die
		for name := range w.pods {
			if w.random.IntN(8) > 0 {
				w.remove(name)
			}
		}
	case kind < 35:
		w.remove(w.name())
	default:
		for range 1 + w.random.IntN(4) {
			w.put(w.name())
		}
	}
}

// serve changes the Service, which is a matter of the whole.
func (w *world) serve() {
	w.service = slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.IPFamilies = [][]corev1.IPFamily{
			{corev1.IPv4Protocol},
			{corev1.IPv6Protocol},
			{corev1.IPv4Protocol, corev1.IPv6Protocol},
		}[w.random.IntN(3)]
		service.Spec.Ports = [][]corev1.ServicePort{
			nil,
			{slicetest.Port("http", 80, intstr.FromInt32(8080))},
			{slicetest.Port("http", 80, intstr.FromString("http"))},
		}[w.random.IntN(3)]
		service.Labels = []map[string]string{nil, {"team": "a"}}[w.random.IntN(2)]
		service.Spec.PublishNotReadyAddresses = w.random.IntN(4) == 0
		if w.random.IntN(3) == 0 {
			near := corev1.ServiceTrafficDistributionPreferSameNode
			service.Spec.TrafficDistribution = &near
		}
	})
	w.placement = nil
}

// meddle does to a slice what others might.
func (w *world) meddle() {
	if len(w.slices) == 0 {
		return
	}
	at := w.random.IntN(len(w.slices))
	edited := w.slices[at].DeepCopy()
	switch w.random.IntN(3) {
	case 0:
		edited.Endpoints = nil
	case 1:
		edited.Labels["stranger"] = "yes"
	default:
		edited.Endpoints = append(edited.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.66.66.66"}})
	}
	w.slices[at] = edited
	w.placement = nil
}

func (w *world) name() string { return fmt.Sprintf("web-%d", w.random.IntN(40)) }

func (w *world) remove(name string) {
	delete(w.pods, name)
	w.changed[name] = struct{}{}
}

func (w *world) put(name string) {
	i := w.random.IntN(60) // now and then the address of another pod
	pod := slicetest.Pod(name, slicetest.Address(i), func(pod *corev1.Pod) {
		if w.random.IntN(2) == 0 {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", i+1)})
		}
		port := corev1.ContainerPort{Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: 8080 + w.random.Int32N(2)}
		if w.random.IntN(4) > 0 {
			pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{port}}}
		}
		if w.random.IntN(3) == 0 {
			slicetest.Unready(pod)
		}
		if w.random.IntN(8) == 0 {
			slicetest.Terminating(pod)
		}
		if w.random.IntN(12) == 0 {
			pod.Status.Phase = corev1.PodFailed
		}
		if w.random.IntN(6) == 0 {
			pod.Spec.Hostname, pod.Spec.Subdomain = name, "web"
		}
		pod.Labels["pod-template-hash"] = fmt.Sprint(w.random.IntN(3))
	})
	candidate := slicetest.Candidate(pod)
	candidate.NodeKnown = w.random.IntN(12) > 0
	w.pods[name] = candidate
	w.changed[name] = struct{}{}
}

// plan plans the whole and, where that must be enough, the part, and carries it out.
func (w *world) plan(t *testing.T) {
	t.Helper()
	whole := pack.Make(w.input(t, nil))
	w.wholes++
	part := w.placement != nil
	if part {
		w.parts++
		got := w.placement.Plan(w.input(t, w.changed), w.changed)
		// The cheap comparison comes first: differences are rare, and to find none is slow.
		if same := len(whole.Changes)+len(got.Changes) == 0 || reflect.DeepEqual(whole.Changes, got.Changes); !same {
			if diff := gocmp.Diff(whole.Changes, got.Changes, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("after changes of %v the plan from a part differs (-whole +part):\n%s", w.changed, diff)
			}
		}
	}
	after, err := slicetest.CarryOut(w.slices, whole)
	if err != nil {
		t.Fatal(err)
	}
	w.slices = after
	w.note(t, whole)
	if again := w.placement.Plan(w.input(t, w.changed), w.changed); !again.Empty() {
		t.Fatalf("planned again, there is still to do: %+v", again)
	}
	w.changed = map[string]struct{}{}
}

// note tells the Placement of a plan that was carried out, or makes it anew.
func (w *world) note(t *testing.T, plan pack.Plan) {
	t.Helper()
	ok := true
	if w.placement == nil {
		w.placement, ok = pack.NewPlacement(w.slices)
	} else {
		for _, change := range plan.Changes {
			if change.Verb == pack.Delete {
				w.placement.Deleted(change.Slice.Name)
				continue
			}
			ok = ok && w.placement.Wrote(w.find(change.Slice.Name))
		}
	}
	held := 0
	for _, slice := range w.slices {
		held += len(slice.Endpoints)
	}
	if !ok || w.placement.Endpoints() != held {
		t.Fatalf("a Placement of a settled Service cannot be kept: %t, %d endpoints, want %d", ok, w.placement.Endpoints(), held)
	}
}

func (w *world) find(name string) *discoveryv1.EndpointSlice {
	for _, slice := range w.slices {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

// input is what the plan is made from: of all pods, or of some.
func (w *world) input(t *testing.T, only map[string]struct{}) pack.Input {
	t.Helper()
	var candidates []desired.Candidate
	for name, candidate := range w.pods {
		if _, concerned := only[name]; only == nil || concerned {
			candidates = append(candidates, candidate)
		}
	}
	return pack.Input{
		Service:    w.service,
		Endpoints:  desired.Resolve(w.service, candidates),
		Slices:     w.slices,
		Taken:      func(name string) bool { return w.find(name) != nil },
		Affinity:   w.affinity,
		Limit:      w.limit,
		ManagedBy:  slicetest.ManagedBy,
		ChangeTime: slicetest.Epoch(),
	}
}

func (w *world) affinity(pod string) uint32 {
	if candidate, ok := w.pods[pod]; ok {
		return desired.AffinityOf(candidate.Pod)
	}
	return 0
}

func TestOf_RefusesWhatNoPlanLeaves(t *testing.T) {
	service := slicetest.Service("web")
	for name, spoil := range map[string]func(*discoveryv1.EndpointSlice){
		"an endpoint of no pod":   func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef = nil },
		"an endpoint of no name":  func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.Name = "" },
		"a type that nobody uses": func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN },
	} {
		slice := slicetest.Slice(service, "s", slicetest.Pods(0, 3), spoil)
		if _, ok := pack.NewPlacement([]*discoveryv1.EndpointSlice{slice}); ok {
			t.Errorf("%s: is taken", name)
		}
	}
}
