package pack_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/slicereader"
)

// readersWorld is the history of one Service whose slices simple readers follow.
type readersWorld struct {
	t       *rapid.T
	service *corev1.Service
	pods    []desired.Candidate
	// created counts Pods and addresses that ever were.
	created int
	slices  []*discoveryv1.EndpointSlice
	limit   int

	byAddress, byPod, inBatches *slicereader.Reader
	batch                       []slicereader.Event
}

func newReadersWorld(t *rapid.T) *readersWorld {
	return &readersWorld{
		t:         t,
		service:   slicetest.Service("web"),
		limit:     rapid.IntRange(1, 6).Draw(t, "limit"),
		byAddress: slicereader.New(slicereader.ByAddress),
		byPod:     slicereader.New(slicereader.ByPod),
		inBatches: slicereader.New(slicereader.ByAddress),
	}
}

// step changes the Service, its Pods, or what other writers may change of its slices.
func (w *readersWorld) step() {
	switch rapid.SampledFrom([]string{"add", "add", "remove", "remove", "replace", "restart", "ready", "ports", "families", "labels", "limit", "delete", "owner", "finalizer"}).Draw(w.t, "step") {
	case "add":
		w.add(rapid.IntRange(1, 12).Draw(w.t, "added"))
	case "remove":
		w.remove(rapid.IntRange(1, 12).Draw(w.t, "removed"))
	case "replace":
		n := rapid.IntRange(1, 8).Draw(w.t, "replaced")
		w.remove(n)
		w.add(n)
	case "restart": // as Pods of a StatefulSet: the name stays, the address does not
		for range min(len(w.pods), rapid.IntRange(1, 3).Draw(w.t, "restarted")) {
			w.put(rapid.IntRange(0, len(w.pods)-1).Draw(w.t, "which"), "")
		}
	case "ready":
		for i := range w.pods {
			w.pods[i].Pod.Status.Conditions[0].Status = rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse}).Draw(w.t, "ready")
		}
	case "ports":
		target := rapid.SampledFrom([]intstr.IntOrString{intstr.FromInt32(8080), intstr.FromInt32(9090), intstr.FromString("http")}).Draw(w.t, "target")
		w.service.Spec.Ports = []corev1.ServicePort{slicetest.Port("http", 80, target)}
	case "families":
		w.service.Spec.IPFamilies = rapid.SampledFrom([][]corev1.IPFamily{{corev1.IPv4Protocol}, {corev1.IPv4Protocol, corev1.IPv6Protocol}}).Draw(w.t, "families")
	case "labels":
		w.service.Labels = map[string]string{"team": rapid.SampledFrom([]string{"a", "b"}).Draw(w.t, "team")}
	case "limit":
		w.limit = rapid.IntRange(1, 6).Draw(w.t, "limit now")
	case "delete":
		if len(w.slices) > 0 {
			w.forget(rapid.SampledFrom(w.slices).Draw(w.t, "deleted slice"))
		}
	case "owner":
		w.edit(func(slice *discoveryv1.EndpointSlice) { slice.OwnerReferences[0].UID = "an-earlier-service" })
	case "finalizer":
		w.edit(terminating)
	}
}

func (w *readersWorld) add(n int) {
	for range n {
		w.pods = append(w.pods, desired.Candidate{})
		w.put(len(w.pods)-1, fmt.Sprintf("web-%d", w.created))
	}
}

// put makes a Pod with a new address; an empty name keeps the one it has.
func (w *readersWorld) put(at int, name string) {
	if name == "" {
		name = w.pods[at].Pod.Name
	}
	w.created++
	pod := slicetest.Pod(name, slicetest.Address(w.created))
	pod.UID = types.UID(fmt.Sprintf("uid-%d", w.created))
	pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", w.created)})
	pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{
		Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: int32(8080 + w.created%2),
	}}}}
	w.pods[at] = slicetest.Candidate(pod)
}

func (w *readersWorld) remove(n int) {
	for range min(n, len(w.pods)) {
		i := rapid.IntRange(0, len(w.pods)-1).Draw(w.t, "which")
		w.pods = slices.Delete(w.pods, i, i+1)
	}
}

// edit changes a slice as another writer may.
func (w *readersWorld) edit(change func(*discoveryv1.EndpointSlice)) {
	if len(w.slices) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.slices)-1).Draw(w.t, "edited slice")
	w.slices[i] = w.slices[i].DeepCopy()
	change(w.slices[i])
	w.show(slicereader.Event{Slice: w.slices[i]})
}

func (w *readersWorld) forget(slice *discoveryv1.EndpointSlice) {
	w.slices = slices.DeleteFunc(slices.Clone(w.slices), func(s *discoveryv1.EndpointSlice) bool { return s.Name == slice.Name })
	w.show(slicereader.Event{Slice: slice, Deleted: true})
}

// show lets the readers see an event.
func (w *readersWorld) show(event slicereader.Event) {
	w.byAddress.Apply(event)
	w.byPod.Apply(event)
	if w.batch = append(w.batch, event); rapid.Bool().Draw(w.t, "batch ends") {
		w.endBatch()
	}
}

func (w *readersWorld) endBatch() {
	w.inBatches.Apply(w.batch...)
	w.batch = nil
}

func (w *readersWorld) input() pack.Input {
	return limited(w.limit, input(w.service, w.pods, w.slices...))
}

// write makes the first writes of a plan in an order in which the controller may make them.
func (w *readersWorld) write(plan pack.Plan, most int) {
	for _, change := range slicetest.DrawWrites(w.t, plan, most) {
		w.slices = apply(w.t, w.slices, []pack.Change{change})
		event := slicereader.Event{Slice: change.Slice, Deleted: change.Verb == planned.Delete}
		w.show(event)
	}
}

// repeat lets time pass, in which deleted slices go and slices that took endpoints are written
// again.
func (w *readersWorld) repeat() {
	w.endBatch()
	for _, slice := range w.slices {
		if slice.DeletionTimestamp != nil {
			w.forget(slice)
		}
	}
	w.endBatch()
	w.write(pack.Repeat(w.input(), 1000), 1000)
	w.endBatch()
}

// settle brings everything in order, and checks that no reader misses a ready endpoint.
func (w *readersWorld) settle() {
	w.write(pack.Make(w.input()), 1000)
	w.repeat()
	if plan := pack.Make(w.input()); !plan.Empty() {
		w.t.Fatalf("there is still something to do: %v", reasons(plan))
	}
	for _, slice := range w.slices {
		if pack.TookEndpointsLately(slice) {
			w.t.Fatalf("slice %s is to be written again, for ever", slice.Name)
		}
	}
	for name, reader := range map[string]*slicereader.Reader{"by address": w.byAddress, "by Pod": w.byPod, "in batches": w.inBatches} {
		if missing := reader.Missing(); len(missing) > 0 {
			w.t.Fatalf("the reader %s lacks the ready endpoints %q", name, missing)
		}
	}
}

// No plan loses a ready endpoint for a reader that looks at each slice alone, whatever happens to
// Pods, Service and slices, with and without compaction, also if a term ends in the middle of a
// plan.
func TestPlans_SimpleReadersLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newReadersWorld(t)
		w.add(rapid.IntRange(0, 30).Draw(t, "pods"))
		w.settle()
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			w.step()
			if rapid.IntRange(0, 3).Draw(t, "interrupted") == 0 {
				w.write(pack.Make(w.input()), rapid.IntRange(0, 3).Draw(t, "writes"))
				w.step()
			}
			w.settle()
			if rapid.Bool().Draw(t, "compact") {
				w.write(pack.Compact(w.input(), 12), rapid.SampledFrom([]int{1, 2, 3, 1000}).Draw(t, "writes of the compaction"))
				if rapid.Bool().Draw(t, "at once again") { // which must do nothing
					w.write(pack.Compact(w.input(), 12), 1000)
				}
				if rapid.Bool().Draw(t, "a change comes") {
					w.step()
				}
				w.settle()
			}
		}
	})
}

// An ordinary plan moves nothing: an endpoint that stays has the slice that it had, unless its set
// of ports is split, or its slice belongs to another owner or goes.
func TestMake_MovesNoEndpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newReadersWorld(t)
		w.add(rapid.IntRange(0, 30).Draw(t, "pods"))
		w.settle()
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			target := w.service.Spec.Ports[0].TargetPort
			w.step()
			if w.service.Spec.Ports[0].TargetPort != target && w.service.Spec.Ports[0].TargetPort.Type == intstr.String {
				w.settle()
				continue
			}
			before := map[string]string{}
			for _, slice := range w.slices {
				if slice.DeletionTimestamp == nil && slice.OwnerReferences[0].UID == w.service.UID {
					for i := range slice.Endpoints {
						before[slice.Endpoints[i].Addresses[0]] = slice.Name
					}
				}
			}
			w.settle()
			for _, slice := range w.slices {
				for i := range slice.Endpoints {
					address := slice.Endpoints[i].Addresses[0]
					if was := before[address]; was != "" && was != slice.Name {
						t.Fatalf("endpoint %s moved from slice %s to %s", address, was, slice.Name)
					}
				}
			}
		}
	})
}
