package slicesvc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	trivetmeta "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// expectState waits until the answer for Service web is as check wants it.
func (f *mirrorFixture) expectState(check func(*slicev1.ServiceSlices) error) *slicev1.ServiceSlices {
	f.t.Helper()
	var state *slicev1.ServiceSlices
	testkit.Eventually(f.t, testTimeout, func() (err error) {
		if state, err = f.serviceSlices(); err != nil {
			return err
		}
		return check(state)
	})
	return state
}

// conditionsOf returns "type=reason" of the conditions that are TRUE.
func conditionsOf(state *slicev1.ServiceSlices) string {
	var all []string
	for _, condition := range state.GetConditions() {
		if condition.GetStatus() == trivetmeta.Condition_STATUS_TRUE {
			all = append(all, condition.GetType()+"="+condition.GetReason())
		}
	}
	return strings.Join(all, " ")
}

func (f *mirrorFixture) explainAddress(address string) *slicev1.ExplainEndpointResponse {
	f.t.Helper()
	answer, err := f.client.ExplainEndpoint(f.ctx(), &slicev1.ExplainEndpointRequest{
		Name: planRequest(f.fixture).Name, Endpoint: &slicev1.ExplainEndpointRequest_Address{Address: address},
	})
	f.must(err)
	return answer
}

// The API shows a hand-made Endpoints object from its first slice on: what is dropped, the source,
// and why an address is in no slice. The watch sends each change of it.
func TestMirrorViews_ShowWhatIsDropped(t *testing.T) {
	t.Parallel()
	f := newMirrorFixture(t, func(cfg *slicesvc.Config) { cfg.Mirroring.MaxEndpointsPerSubset = 5 })
	f.service(withoutSelector)
	stream := startWatch(t, f.client, "namespaces/"+f.namespace)
	receiveUntil(t, stream, isBookmark)
	var addresses []string
	for i := range 8 {
		addresses = append(addresses, slicetest.Address(i))
	}
	f.endpoints(map[int32][]string{80: addresses})
	state := f.expectState(func(state *slicev1.ServiceSlices) error {
		if got := conditionsOf(state); got != "AddressesDropped=TOO_MANY_ADDRESSES Managed=MIRRORED" || len(state.GetSlices()) != 1 {
			return fmt.Errorf("conditions are %q with %d slices", got, len(state.GetSlices()))
		}
		return nil
	})
	slice, sync := state.GetSlices()[0], state.GetSyncs()[0]
	if slice.GetSource() != slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS || slice.GetCapacity() != 5 || slice.GetEndpointCount() != 5 || slice.GetWriteTime() == nil {
		t.Errorf("slice is %v, want 5 of 5 endpoints of the Endpoints object", slice)
	}
	if len(state.GetSyncs()) != 1 || sync.GetSource() != slice.GetSource() || sync.GetDroppedAddressCount() != 3 || sync.GetLastPlan().GetCreateCount() != 1 {
		t.Errorf("syncs are %v, want one of the Endpoints object that drops 3 addresses", state.GetSyncs())
	}
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return len(event.GetServiceSlices().GetSyncs()) == 1 && event.GetServiceSlices().GetSyncs()[0].GetDroppedAddressCount() == 3
	})

	for address, want := range map[string]string{addresses[0]: "", addresses[7]: "ADDRESS", "10.99.0.1": "ADDRESS"} {
		answer := f.explainAddress(address)
		failed := ""
		if answer.BrokenIndex != nil {
			failed = answer.Evidence[*answer.BrokenIndex].Code
		}
		if failed != want || answer.Included != (want == "") || answer.Evidence[1].Code != "ENDPOINTS" || answer.Evidence[1].Object.GetKind() != "Endpoints" {
			t.Errorf("%s: failed link %q, included %t, evidence %v; want %q", address, failed, answer.Included, answer.Evidence, want)
		}
	}
	if counts := f.replica.Counts(); counts["dropped_addresses"] != 3 || counts["mirrored_endpoints_objects"] != 1 {
		t.Errorf("counts are %v, want 3 dropped addresses of 1 mirrored object", counts)
	}
	var codes []string
	for _, problem := range f.replica.Problems() {
		codes = append(codes, problem.GetCode())
	}
	if got := strings.Join(codes, " "); got != "ADDRESSES_DROPPED" {
		t.Errorf("problems are %q, want ADDRESSES_DROPPED", got)
	}

	f.updateEndpoints(func(object *corev1.Endpoints) { setSubsets(object, map[int32][]string{80: addresses[:2]}) })
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.GetServiceSlices().GetEndpointCount() == 2 && conditionsOf(event.GetServiceSlices()) == "Managed=MIRRORED"
	})
}

// After a Service lost its selector, the plan is one of both sources, and has one etag. The slices
// of the Pods stay in the plan until the mirrored slice is written.
func TestMirrorViews_OneEtagCoversBothSources(t *testing.T) {
	t.Parallel()
	f := newMirrorFixture(t, func(cfg *slicesvc.Config) { cfg.CleanUpSelectorless = true })
	f.service()
	f.expectState(func(state *slicev1.ServiceSlices) error {
		if len(state.GetSlices()) != 1 {
			return errors.New("no slice yet")
		}
		return nil
	})
	f.candidate.Lose() // so that only the requests below write
	f.updateService(withoutSelector)
	f.endpoints(map[int32][]string{80: {"10.0.0.1"}})
	var plan *trivetmeta.Plan
	testkit.Eventually(t, testTimeout, func() error {
		answer, err := f.client.PlanServiceSlices(f.ctx(), planRequest(f.fixture))
		plan = answer.GetPlan()
		if err == nil && (len(plan.GetChanges()) != 1 || plan.Changes[0].Verb != trivetmeta.Change_VERB_CREATE || !strings.Contains(plan.Etag, "-")) {
			err = fmt.Errorf("plan is %v, want a creation and an etag of two parts", plan)
		}
		return err
	})
	request := &slicev1.ReconcileServiceSlicesRequest{Name: planRequest(f.fixture).Name, Etag: plan.Etag, ValidateOnly: true}
	if _, err := f.client.ReconcileServiceSlices(f.ctx(), request); err != nil {
		t.Errorf("dry run: %v", err)
	}
	if all := f.slicesOf(slicesvc.UpstreamManagedBy); len(all) != 1 {
		t.Errorf("%d slices of Pods after a dry run, want 1", len(all))
	}
	if got := conditionsOf(f.expectState(func(*slicev1.ServiceSlices) error { return nil })); got != "Managed=MIRRORED" {
		t.Errorf("conditions are %q before the mirrored slice is written", got)
	}
	f.candidate.Regain()
	f.expectMirrors("80 10.0.0.1")
	testkit.Eventually(t, testTimeout, func() error {
		if all := f.slicesOf(slicesvc.UpstreamManagedBy); len(all) != 0 {
			return fmt.Errorf("%d slices of Pods are left", len(all))
		}
		answer, err := f.client.ReconcileServiceSlices(f.ctx(), &slicev1.ReconcileServiceSlicesRequest{Name: request.Name})
		if err == nil && len(answer.GetPlan().GetChanges()) != 0 {
			err = fmt.Errorf("a second run has the changes %v", answer.GetPlan().GetChanges())
		}
		return err
	})
}
