package index_test

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestSnapshot_DoesNotShowLaterChanges(t *testing.T) {
	x := filled()
	x.PutSlice(namedSlice("web-a", slicetest.ManagedBy))
	snapshot, _ := x.Snapshot(key("web"))
	some, _ := x.SnapshotOfPods(key("web"), map[string]struct{}{"web-0": {}, "api-0": {}})

	x.PutPod(slicetest.Pod("web-0", "10.1.0.9", slicetest.Unready, labels("tier", "front", "app", "web")))
	x.PutPod(slicetest.Pod("web-1", "10.1.0.3", labels("tier", "front", "app", "web")))
	x.PutNode("node-a", hints.Node{Zone: "zone-b", MilliCPU: 1000, Eligible: true})
	x.PutSlice(namedSlice("web-b", slicetest.ManagedBy))
	x.DeleteSlice(namedSlice("web-a", slicetest.ManagedBy))
	x.PutService(slicetest.Service("web", selector("app", "other")))

	for name, s := range map[string]index.Snapshot{"all": snapshot, "some Pods": some} {
		candidate := first(t, s)
		if got := candidate.Pod.Status.PodIPs[0].IP; len(s.Pods) != 1 || got != "10.1.0.1" || candidate.Zone != "zone-a" {
			t.Errorf("%s: %d Pods, the first at %s in %s, want one at 10.1.0.1 in zone-a", name, len(s.Pods), got, candidate.Zone)
		}
		if diff := gocmp.Diff([]string{"web-a"}, s.SliceNames); diff != "" {
			t.Errorf("%s: names of slices (-want +got):\n%s", name, diff)
		}
		if !s.Shares.Equal(hints.Shares{}) || s.Service.Spec.Selector["app"] != "web" {
			t.Errorf("%s: shares %+v or Service %+v are of a later time", name, s.Shares, s.Service.Spec)
		}
	}
	if len(snapshot.Slices) != 1 || snapshot.Slices[0].Name != "web-a" || some.Slices != nil {
		t.Errorf("slices are %v and %v, want web-a and none", snapshot.Slices, some.Slices)
	}
}

// The names include slices of other managers and tombstones, but only names that a new slice may
// get.
func TestSnapshot_SliceNamesHaveThePrefixOfTheService(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	for _, slice := range []*discoveryv1.EndpointSlice{
		namedSlice("web-c", slicetest.ManagedBy), namedSlice("web-a", slicetest.ManagedBy), namedSlice("web-b", "another"),
		namedSlice("web-api-a", slicetest.ManagedBy), namedSlice("web", slicetest.ManagedBy), namedSlice("webs-a", slicetest.ManagedBy),
	} {
		x.PutSlice(slice)
	}
	x.PutTombstone(namedSlice("web-a", slicetest.ManagedBy))
	x.PutWrittenSlice(namedSlice("web-c", slicetest.ManagedBy))
	snapshot, _ := x.Snapshot(key("web"))
	if diff := gocmp.Diff([]string{"web-a", "web-b", "web-c"}, snapshot.SliceNames); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if !snapshot.NameTaken("web-b") || snapshot.NameTaken("web-d") {
		t.Error("name web-b is free, or web-d is taken")
	}
	for _, name := range []string{"web-a", "web-b", "web-c"} {
		x.DeleteSlice(namedSlice(name, ""))
	}
	if snapshot, _ = x.Snapshot(key("web")); len(snapshot.SliceNames) > 0 {
		t.Errorf("names %v are left", snapshot.SliceNames)
	}
}

func TestSnapshot_AffinitiesOfSelectedPods(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	for name, hash := range map[string]string{"web-0": "a", "web-1": "a", "web-2": "b", "web-3": ""} {
		x.PutPod(slicetest.Pod(name, "10.1.0.1", func(pod *corev1.Pod) { pod.Labels["pod-template-hash"] = hash }))
	}
	snapshot, _ := x.Snapshot(key("web"))
	got := snapshot.Affinities()
	if len(got) != 3 || got["web-0"] != got["web-1"] || got["web-1"] == got["web-2"] {
		t.Errorf("affinities are %v, want one for web-0 and web-1, another for web-2 and none for web-3", got)
	}
}

func TestSnapshot_UnknownServiceHasNone(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutSlice(namedSlice("web-a", slicetest.ManagedBy))
	_, all := x.Snapshot(key("web"))
	_, some := x.SnapshotOfPods(key("web"), nil)
	if all || some {
		t.Errorf("snapshots are found: %t, of Pods: %t", all, some)
	}
}

func TestSliceNamePrefix_LeavesSpaceForTheRest(t *testing.T) {
	long := string(slices.Repeat([]byte("x"), 51)) + "-" + "yyyy"
	for service, want := range map[string]string{"web": "web", long: long[:51], "a.b": "a.b"} {
		if got := index.SliceNamePrefix(service); got != want {
			t.Errorf("prefix of %s is %s, want %s", service, got, want)
		}
	}
}

// namedSlice returns a slice that names Service web.
func namedSlice(name, managedBy string) *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), name, nil, func(slice *discoveryv1.EndpointSlice) {
		slice.Labels[discoveryv1.LabelManagedBy] = managedBy
	})
}
