package pack_test

import (
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

func TestMake_PlanAfterAnAppliedPlanIsEmpty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
		if again := pack.Make(in); !again.Empty() {
			t.Fatalf("after the plan was applied: %v", reasons(again))
		}
	})
}

func TestMake_SlicesHaveTheDesiredEndpointsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		after := apply(t, in.Slices, pack.Make(in).Changes)
		if in.Service.DeletionTimestamp != nil {
			t.Skip("a Service that is being deleted gets no new slices")
		}
		if diff := gocmp.Diff(wanted(in), held(t, in, after)); diff != "" {
			t.Fatalf("desired (-) and held (+) endpoints differ:\n%s", diff)
		}
		for _, family := range in.Endpoints.Families {
			if !hasSlice(after, family.AddressType) {
				t.Fatalf("no %s slice, not even an empty one", family.AddressType)
			}
		}
	})
}

// After each of the writes, every endpoint that is in the slices before and after the plan, for the
// same ports, is in a slice.
func TestMake_NoEndpointIsMissingWhileAPlanIsApplied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		in.Service.DeletionTimestamp = nil
		plan := pack.Make(in)
		stays := identities(in.Slices)
		after := identities(apply(t, in.Slices, pack.Make(in).Changes))
		maps.DeleteFunc(stays, func(endpoint string, _ bool) bool { return !after[endpoint] })
		for n := range plan.Changes {
			between := apply(t, in.Slices, plan.Changes[:n])
			there := identities(between)
			for endpoint := range stays {
				if !there[endpoint] {
					t.Fatalf("endpoint %q is in no slice after %d of the writes %v", endpoint, n, reasons(plan))
				}
			}
		}
	})
}

// The same holds when a write fails: the changes that supersede are not made then.
func TestMake_NoEndpointIsMissingAfterAWriteFailed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		in.Service.DeletionTimestamp = nil
		plan := pack.Make(in)
		stays := identities(in.Slices)
		after := identities(apply(t, in.Slices, pack.Make(in).Changes))
		maps.DeleteFunc(stays, func(endpoint string, _ bool) bool { return !after[endpoint] })
		for failed := range plan.Changes {
			there := identities(withoutWrite(t, in, plan, failed))
			for endpoint := range stays {
				if !there[endpoint] {
					t.Fatalf("endpoint %q is in no slice after write %d of %v failed", endpoint, failed, reasons(plan))
				}
			}
		}
	})
}

// A plan that is applied in part, for example at the end of a term, leaves endpoints in two slices.
// The next plan writes no slice that is as it should be.
func TestMake_NoNeedlessWriteAfterAPlanWasAppliedInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		plan := pack.Make(in)
		for n := range plan.Changes {
			left := apply(t, in.Slices, plan.Changes[:n])
			again := in
			again.Slices = left
			checkNoNeedlessWrite(t, left, pack.Make(again))
		}
	})
}

func checkNoNeedlessWrite(t *rapid.T, from []*discoveryv1.EndpointSlice, plan pack.Plan) {
	for _, change := range plan.Changes {
		for _, was := range from {
			if change.Verb == planned.Update && was.Name == change.Slice.Name && gocmp.Equal(was, change.Slice) {
				t.Fatalf("slice %s is written although it does not change: %v", was.Name, reasons(plan))
			}
		}
	}
}

// withoutWrite applies a plan of which one write fails.
func withoutWrite(t *rapid.T, in pack.Input, plan pack.Plan, failed int) []*discoveryv1.EndpointSlice {
	written := slices.Clone(plan.Changes[:failed])
	for _, change := range plan.Changes[failed+1:] {
		if !change.Supersedes() {
			written = append(written, change)
		}
	}
	left := apply(t, in.Slices, written)
	return left
}

func TestMake_ChangesNoInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		service, slices := in.Service.DeepCopy(), deepCopies(in.Slices)
		plan := pack.Make(in)
		if diff := gocmp.Diff(service, in.Service); diff != "" {
			t.Fatalf("the Service changed:\n%s", diff)
		}
		if diff := gocmp.Diff(slices, in.Slices); diff != "" {
			t.Fatalf("plan %v changed the slices:\n%s", reasons(plan), diff)
		}
	})
}

func TestMake_OrderOfInputsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		plan := pack.Make(in)
		shuffled := in
		shuffled.Slices = rapid.Permutation(in.Slices).Draw(t, "slices")
		shuffled.Endpoints.Families = nil
		for _, family := range in.Endpoints.Families {
			groups := make([]desired.Group, len(family.Groups))
			for i, group := range family.Groups {
				group.Endpoints = rapid.Permutation(group.Endpoints).Draw(t, "endpoints")
				groups[i] = group
			}
			family.Groups = groups
			shuffled.Endpoints.Families = append(shuffled.Endpoints.Families, family)
		}
		if diff := gocmp.Diff(plan, pack.Make(shuffled), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("another order gives another plan:\n%s", diff)
		}
	})
}

func wanted(in pack.Input) map[string]map[desired.Endpoint]int {
	all := map[string]map[desired.Endpoint]int{}
	for _, family := range in.Endpoints.Families {
		for _, group := range family.Groups {
			at := groupName(family.AddressType, group.Key)
			all[at] = map[desired.Endpoint]int{}
			for _, endpoint := range group.Endpoints {
				all[at][withoutAuto(in, endpoint)]++
			}
		}
	}
	return all
}

func held(t *rapid.T, in pack.Input, slices []*discoveryv1.EndpointSlice) map[string]map[desired.Endpoint]int {
	all := map[string]map[desired.Endpoint]int{}
	for _, slice := range slices {
		if slice.DeletionTimestamp != nil {
			continue
		}
		checkSlice(t, in, slice)
		if len(slice.Endpoints) == 0 {
			continue
		}
		at := groupName(slice.AddressType, desired.KeyOf(slice.Ports))
		if all[at] == nil {
			all[at] = map[desired.Endpoint]int{}
		}
		for i := range slice.Endpoints {
			endpoint, exact := desired.FromObject(&slice.Endpoints[i])
			if !exact {
				t.Fatalf("slice %s keeps an endpoint of another writer: %v", slice.Name, slice.Endpoints[i])
			}
			all[at][withoutAuto(in, endpoint)]++
		}
	}
	return all
}

// withoutAuto removes the hints of mode Auto, which are not part of the desired endpoints.
func withoutAuto(in pack.Input, endpoint desired.Endpoint) desired.Endpoint {
	if hints.ModeOf(in.Service) == hints.Auto {
		endpoint.HintZone = ""
	}
	return endpoint
}

func checkSlice(t *rapid.T, in pack.Input, slice *discoveryv1.EndpointSlice) {
	most := in.Limit
	for _, before := range in.Slices {
		if before.Name == slice.Name {
			most = max(most, len(before.Endpoints))
		}
	}
	if len(slice.Endpoints) > most {
		t.Fatalf("slice %s holds %d endpoints, more than %d", slice.Name, len(slice.Endpoints), most)
	}
	for key, value := range in.Service.Labels {
		if key != discoveryv1.LabelManagedBy && slice.Labels[key] != value {
			t.Fatalf("slice %s lacks label %s=%s", slice.Name, key, value)
		}
	}
	if slice.OwnerReferences[0].UID != in.Service.UID {
		t.Fatalf("slice %s is owned by %s", slice.Name, slice.OwnerReferences[0].UID)
	}
}

func hasSlice(slices []*discoveryv1.EndpointSlice, addressType discoveryv1.AddressType) bool {
	for _, slice := range slices {
		if slice.AddressType == addressType && slice.DeletionTimestamp == nil {
			return true
		}
	}
	return false
}
