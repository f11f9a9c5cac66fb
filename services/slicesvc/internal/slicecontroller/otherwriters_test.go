package slicecontroller_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestRun_RevertsWhatOthersDoToOurSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, api, _ := shop(t)
		const want = "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a"
		for name, meddle := range map[string]func(name string){
			"edited": func(name string) {
				api.edit(name, func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] })
			},
			"relabelled": func(name string) { api.edit(name, func(s *discoveryv1.EndpointSlice) { s.Labels["a"] = "b" }) },
			"deleted":    api.delete,
		} {
			meddle(api.only(t).Name)
			settle(100 * time.Millisecond)
			if got := describe(api.only(t)); got != want {
				t.Errorf("%s: slice holds %q, want %q", name, got, want)
			}
			if got := api.took(); got != 1 {
				t.Errorf("%s: %d writes, want 1", name, got)
			}
			settle(time.Minute) // what comes in quick succession is contention
		}
	})
}

// An event that comes while a pass writes may be of that pass, or not: here
// somebody else deletes a slice while another one of the Service is written.
func TestRun_NoticesOthersHandsDuringAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		for i := 2; i < 150; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		settle(time.Second)
		meddled := false
		api.refuseWith(func(change pack.Change) error {
			for name := range api.slices {
				if !meddled && name != change.Slice.Name {
					meddled = true
					api.remove(name)
				}
			}
			return nil
		})
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		settle(time.Second)
		if got := api.size(); !meddled || got != 2 {
			t.Errorf("%d slices, want the one deleted meanwhile replaced", got)
		}
	})
}

func TestRun_SliceGivenAwayIsReplacedUnderAnotherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		lost := api.only(t).Name
		api.edit(lost, func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "somebody" })
		settle(100 * time.Millisecond)
		state, _ := e.State(key("web"))
		if len(state.Slices) != 1 || state.Slices[0].Name == lost {
			t.Errorf("slices are %v, want one that is not %s", state.Slices, lost)
		}
		if got := api.took(); got != 1 {
			t.Errorf("%d writes, want 1", got)
		}
	})
}

func TestRun_ServiceMadeAgainGetsSlicesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		old := api.only(t)
		e.DeleteService(slicetest.Service("web"))
		e.PutService(slicetest.Service("web", func(service *corev1.Service) { service.UID = "made again" }))
		settle(100 * time.Millisecond)
		slice := api.only(t)
		if slice.UID == old.UID || slice.OwnerReferences[0].UID != "made again" {
			t.Errorf("slice %s (%s) is owned by %s, want a new one of the new Service", slice.Name, slice.UID, slice.OwnerReferences[0].UID)
		}
		if got := len(slice.Endpoints); got != 2 {
			t.Errorf("%d endpoints, want 2", got)
		}
	})
}

// A finalizer of somebody else's keeps a slice that we deleted; the Service must
// not wait for it to go.
func TestRun_FinalizerOnADeletedSliceHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		old := api.only(t).Name
		api.edit(old, func(slice *discoveryv1.EndpointSlice) { slice.Finalizers = []string{"example.com/wait"} })
		e.PutService(slicetest.Service("web", func(service *corev1.Service) { service.UID = "made again" }))
		settle(100 * time.Millisecond)
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(100 * time.Millisecond)
		api.mu.Lock()
		defer api.mu.Unlock()
		for name, slice := range api.slices {
			if name != old && len(slice.Endpoints) != 3 {
				t.Errorf("slice %s holds %d endpoints, want 3", name, len(slice.Endpoints))
			}
		}
		if api.slices[old].DeletionTimestamp == nil || len(api.slices) != 2 {
			t.Errorf("%d slices, want the new one and the old one being deleted", len(api.slices))
		}
	})
}
