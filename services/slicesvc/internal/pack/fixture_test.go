package pack_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// input returns the input of a plan with a limit of 100 endpoints.
func input(service *corev1.Service, candidates []desired.Candidate, existing ...*discoveryv1.EndpointSlice) pack.Input {
	return pack.Input{
		Snapshot:  snapshot(service, candidates, existing...),
		Owner:     pack.ServiceOwner(service),
		Endpoints: desired.Resolve(service, candidates),
		Limit:     100,
		ManagedBy: slicetest.ManagedBy,
	}
}

// snapshot returns a Service with Pods and slices as a snapshot of the index.
func snapshot(service *corev1.Service, candidates []desired.Candidate, slices ...*discoveryv1.EndpointSlice) index.Snapshot {
	snapshot := index.Snapshot{Service: service, Slices: slices}
	for _, candidate := range candidates {
		snapshot.Pods = append(snapshot.Pods, index.SelectedPod{
			Pod:       index.NewPod(candidate.Pod),
			NodeKnown: candidate.NodeKnown,
			Zone:      candidate.Zone,
			Affinity:  desired.AffinityOf(candidate.Pod),
		})
	}
	return snapshot
}

func limited(limit int, in pack.Input) pack.Input {
	in.Limit = limit
	return in
}

func terminating(slice *discoveryv1.EndpointSlice) {
	now := slice.CreationTimestamp
	slice.DeletionTimestamp = &now
}

func deepCopies(slices []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	var copies []*discoveryv1.EndpointSlice
	for _, slice := range slices {
		copies = append(copies, slice.DeepCopy())
	}
	return copies
}

// apply returns the slices after the changes of a plan, ordered by name. The test fails if a change
// is not possible, or not guarded by the UID and resourceVersion of the slice.
func apply(t rapid.TB, existing []*discoveryv1.EndpointSlice, changes []pack.Change) []*discoveryv1.EndpointSlice {
	t.Helper()
	byName := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range existing {
		byName[slice.Name] = slice
	}
	for _, change := range changes {
		name := change.Slice.Name
		slice, exists := byName[name]
		switch {
		case (change.Verb == planned.Create) == exists:
			t.Fatalf("cannot %s %s", change.Verb, name)
		case change.Verb != planned.Create && (slice.UID != change.Slice.UID || slice.ResourceVersion != change.Slice.ResourceVersion):
			t.Fatalf("%s of %s is not guarded", change.Verb, name)
		case change.Verb == planned.Update && slice.AddressType != change.Slice.AddressType:
			t.Fatalf("update of %s changes its address type", name)
		case change.Verb == planned.Delete:
			delete(byName, name)
		default:
			byName[name] = stored(change.Slice)
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(a.Name, b.Name)
	})
}

// reasons describes the changes of a plan.
func reasons(plan pack.Plan) []string {
	var all []string
	for _, change := range plan.Changes {
		all = append(all, fmt.Sprintf("%s %s %s: %s", change.Verb, change.Slice.Name, change.Reason, change.Message()))
	}
	return all
}

// outcome is what a plan writes, and how many endpoints each slice has afterwards, in descending
// order.
type outcome struct {
	Creates, Updates, Deletes int
	Fill                      []int
}

func outcomeOf(t rapid.TB, in pack.Input) outcome {
	t.Helper()
	plan := pack.Make(in)
	cost := costOf(in, plan)
	result := outcome{Creates: cost.creates, Updates: cost.updates, Deletes: cost.deletes}
	for _, slice := range apply(t, in.Slices, plan.Changes) {
		result.Fill = append(result.Fill, len(slice.Endpoints))
	}
	slices.Sort(result.Fill)
	slices.Reverse(result.Fill)
	return result
}

// cost is what a plan writes and leaves.
type cost struct {
	creates, updates, deletes int
	// slices is the number of slices afterwards.
	slices int
}

func (c cost) writes() int { return c.creates + c.updates + c.deletes }

func costOf(in pack.Input, plan pack.Plan) cost {
	var result cost
	for _, slice := range in.Slices {
		if slice.DeletionTimestamp == nil {
			result.slices++
		}
	}
	for _, change := range plan.Changes {
		switch change.Verb {
		case planned.Create:
			result.creates++
			result.slices++
		case planned.Update:
			result.updates++
		case planned.Delete:
			result.deletes++
			result.slices--
		}
	}
	return result
}

// groupName names a family and a set of ports.
func groupName(addressType discoveryv1.AddressType, ports desired.PortKey) string {
	return fmt.Sprintf("%s %q", addressType, ports)
}

// identities returns the endpoints that are in any slice, each with its group.
func identities(among []*discoveryv1.EndpointSlice) map[string]bool {
	all := map[string]bool{}
	for _, slice := range among {
		for i := range slice.Endpoints {
			endpoint, _ := desired.FromObject(&slice.Endpoints[i])
			all[fmt.Sprint(groupName(slice.AddressType, desired.KeyOf(slice.Ports)), endpoint.Identity)] = true
		}
	}
	return all
}
