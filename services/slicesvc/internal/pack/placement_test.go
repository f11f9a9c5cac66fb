package pack_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// placementFixture is one Service with its Pods and slices, and its Placement.
type placementFixture struct {
	random  *rand.Rand
	service *corev1.Service
	pods    map[string]desired.Candidate
	slices  []*discoveryv1.EndpointSlice
	limit   int

	// placement is nil when the next plan must be one of the whole.
	placement *pack.Placement
	changed   map[string]struct{}
	// parts and wholes count plans of a change and plans of the whole.
	parts, wholes int
}

// Pods of every kind come, change and go in thousands of steps, several between two plans. Services
// change, and another writer changes slices. Every plan of a change must be the plan of the whole.
func TestPlacement_PlanIsThatOfTheWhole(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			f := &placementFixture{
				random:  rand.New(rand.NewPCG(seed, 0)),
				pods:    map[string]desired.Candidate{},
				limit:   []int{1, 2, 3, 4, 5, 8, 12, 20}[seed],
				changed: map[string]struct{}{},
			}
			f.changeService()
			for range 2000 {
				f.step()
				f.plan(t)
				if t.Failed() {
					return
				}
			}
			if f.parts < 1000 || len(f.slices) == 0 {
				t.Errorf("%d plans of a change, %d of the whole, %d slices: the test covers too little", f.parts, f.wholes, len(f.slices))
			}
		})
	}
}

func (f *placementFixture) step() {
	switch kind := f.random.IntN(100); {
	case kind < 1:
		f.changeService()
	case kind < 3:
		f.tamper()
	case kind < 6: // nearly all Pods go, so that groups and families become empty
		for name := range f.pods {
			if f.random.IntN(8) > 0 {
				f.remove(name)
			}
		}
	case kind < 35:
		f.remove(f.podName())
	default:
		for range 1 + f.random.IntN(4) {
			f.put(f.podName())
		}
	}
}

// changeService changes the Service, which requires a plan of the whole.
func (f *placementFixture) changeService() {
	f.service = slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.IPFamilies = [][]corev1.IPFamily{
			{corev1.IPv4Protocol},
			{corev1.IPv6Protocol},
			{corev1.IPv4Protocol, corev1.IPv6Protocol},
		}[f.random.IntN(3)]
		service.Spec.Ports = [][]corev1.ServicePort{
			nil,
			{slicetest.Port("http", 80, intstr.FromInt32(8080))},
			{slicetest.Port("http", 80, intstr.FromString("http"))},
		}[f.random.IntN(3)]
		service.Labels = []map[string]string{nil, {"team": "a"}}[f.random.IntN(2)]
		service.Spec.PublishNotReadyAddresses = f.random.IntN(4) == 0
		if f.random.IntN(3) == 0 {
			near := corev1.ServiceTrafficDistributionPreferSameNode
			service.Spec.TrafficDistribution = &near
		}
	})
	f.placement = nil
}

// tamper changes a slice as another writer may.
func (f *placementFixture) tamper() {
	if len(f.slices) == 0 {
		return
	}
	at := f.random.IntN(len(f.slices))
	edited := f.slices[at].DeepCopy()
	switch f.random.IntN(3) {
	case 0:
		edited.Endpoints = nil
	case 1:
		edited.Labels["unexpected"] = "yes"
	default:
		edited.Endpoints = append(edited.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.66.66.66"}})
	}
	f.slices[at] = edited
	f.placement = nil
}

func (f *placementFixture) podName() string { return fmt.Sprintf("web-%d", f.random.IntN(40)) }

func (f *placementFixture) remove(name string) {
	delete(f.pods, name)
	f.changed[name] = struct{}{}
}

func (f *placementFixture) put(name string) {
	i := f.random.IntN(60) // sometimes the address of another Pod
	pod := slicetest.Pod(name, slicetest.Address(i), func(pod *corev1.Pod) {
		if f.random.IntN(2) == 0 {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", i+1)})
		}
		port := corev1.ContainerPort{Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: 8080 + f.random.Int32N(2)}
		if f.random.IntN(4) > 0 {
			pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{port}}}
		}
		if f.random.IntN(3) == 0 {
			slicetest.Unready(pod)
		}
		if f.random.IntN(8) == 0 {
			slicetest.Terminating(pod)
		}
		if f.random.IntN(12) == 0 {
			pod.Status.Phase = corev1.PodFailed
		}
		if f.random.IntN(6) == 0 {
			pod.Spec.Hostname, pod.Spec.Subdomain = name, "web"
		}
		pod.Labels["pod-template-hash"] = fmt.Sprint(f.random.IntN(3))
	})
	candidate := slicetest.Candidate(pod)
	candidate.NodeKnown = f.random.IntN(12) > 0
	f.pods[name] = candidate
	f.changed[name] = struct{}{}
}

// plan plans the whole and, with a Placement, the change, and applies the plan.
func (f *placementFixture) plan(t *testing.T) {
	t.Helper()
	whole := pack.Make(f.input(nil))
	f.wholes++
	if f.placement != nil {
		f.parts++
		got := f.placement.Plan(f.input(f.changed), f.changed)
		// The cheap comparison comes first: differences are rare, and gocmp is slow.
		if same := len(whole.Changes)+len(got.Changes) == 0 || reflect.DeepEqual(whole.Changes, got.Changes); !same {
			if diff := gocmp.Diff(whole.Changes, got.Changes, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("after changes of %v the plan of the change differs (-whole +change):\n%s", f.changed, diff)
			}
		}
	}
	f.slices = apply(t, f.slices, whole.Changes)
	f.record(t, whole)
	if again := f.placement.Plan(f.input(f.changed), f.changed); !again.Empty() {
		t.Fatalf("the second plan is not empty: %+v", again)
	}
	f.changed = map[string]struct{}{}
}

// record reports an applied plan to the Placement, or makes a new one.
func (f *placementFixture) record(t *testing.T, plan pack.Plan) {
	t.Helper()
	ok := true
	if f.placement == nil {
		f.placement, ok = pack.NewPlacement(f.input(nil).Snapshot)
	} else {
		for _, change := range plan.Changes {
			if change.Verb == planned.Delete {
				f.placement.Delete(change.Slice.Name)
				continue
			}
			ok = ok && f.placement.Put(f.find(change.Slice.Name))
		}
	}
	held := 0
	for _, slice := range f.slices {
		held += len(slice.Endpoints)
	}
	if !ok || pack.Endpoints(f.placement) != held {
		t.Fatalf("the Placement is not up to date: ok %t, %d endpoints, want %d", ok, pack.Endpoints(f.placement), held)
	}
}

func (f *placementFixture) find(name string) *discoveryv1.EndpointSlice {
	for _, slice := range f.slices {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

// input returns the input of a plan of all Pods, or of the named ones.
func (f *placementFixture) input(only map[string]struct{}) pack.Input {
	var candidates []desired.Candidate
	for name, candidate := range f.pods {
		if _, named := only[name]; only == nil || named {
			candidates = append(candidates, candidate)
		}
	}
	in := input(f.service, candidates, f.slices...)
	for _, slice := range f.slices {
		in.SliceNames = append(in.SliceNames, slice.Name)
	}
	slices.Sort(in.SliceNames)
	in.Limit = f.limit
	in.ChangeTime = slicetest.CreationTime()
	return in
}

func TestNewPlacement_RefusesSlicesThatNoPlanLeaves(t *testing.T) {
	service := slicetest.Service("web")
	for name, tamper := range map[string]func(*discoveryv1.EndpointSlice){
		"endpoint without a target":    func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef = nil },
		"endpoint without a Pod name":  func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.Name = "" },
		"address type without a place": func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN },
	} {
		slice := slicetest.Slice(service, "s", slicetest.Pods(0, 3), tamper)
		if _, ok := pack.NewPlacement(snapshot(service, nil, slice)); ok {
			t.Errorf("%s: accepted", name)
		}
	}
}
