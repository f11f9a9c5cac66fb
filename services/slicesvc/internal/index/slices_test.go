package index_test

import (
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestPutSlice_NamesServicesBeforeAndAfter(t *testing.T) {
	service, other := slicetest.Service("web"), slicetest.Service("api")
	foreign := func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "another" }
	x := index.New(slicetest.ManagedBy, shards)
	for i, step := range []struct {
		name  string
		slice *discoveryv1.EndpointSlice
		want  []index.Key
	}{
		{name: "new", slice: slicetest.Slice(service, "s", slicetest.Pods(0, 2)), want: keys("web")},
		{name: "changed", slice: slicetest.Slice(service, "s", slicetest.Pods(0, 3)), want: keys("web")},
		{name: "moved to another Service", slice: slicetest.Slice(other, "s", nil), want: keys("web", "api")},
		{name: "taken by another manager", slice: slicetest.Slice(other, "s", nil, foreign), want: keys("api")},
		{name: "still of the other manager", slice: slicetest.Slice(service, "s", nil, foreign)},
		{name: "given back", slice: slicetest.Slice(service, "s", slicetest.Pods(0, 1)), want: keys("web")},
	} {
		step.slice.ResourceVersion = fmt.Sprint(10 + i)
		if diff := gocmp.Diff(step.want, servicesOf(x.PutSlice(step.slice)), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: Services (-want +got):\n%s", step.name, diff)
		}
		if _, _, _, taken := x.SliceVersion(key("s")); !taken {
			t.Errorf("%s: the name is free", step.name)
		}
	}
	own := []int{shard.Of(slicetest.Namespace, "web", shards)}
	if got := x.Counts(own); got != (index.Counts{EndpointSlices: 1, Endpoints: 1}) {
		t.Errorf("the Service's shard counts %+v, want one slice with one endpoint", got)
	}
	if diff := gocmp.Diff(keys("web"), x.DeleteSlice(slicetest.Slice(service, "s", nil))); diff != "" {
		t.Errorf("deleted: Services (-want +got):\n%s", diff)
	}
	if got := x.Counts(everyShard()); got != (index.Counts{}) {
		t.Errorf("counts are %+v, want none", got)
	}
}

// version returns slice s of Service web with so many endpoints.
func version(uid, version string, endpoints int) *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), "s", slicetest.Pods(0, endpoints), func(slice *discoveryv1.EndpointSlice) {
		slice.UID, slice.ResourceVersion = types.UID(uid), version
	})
}

// held returns the UID and version of slice s that the index returns for Service web.
func held(x *index.Index) string {
	_, slices, _ := x.Slices(key("web"))
	if len(slices) != 1 {
		return ""
	}
	return string(slices[0].UID) + "@" + slices[0].ResourceVersion
}

func TestSlices_WrittenVersionIsKnownBeforeItsEvent(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	put := func(uid, at string) func() []index.Key {
		return func() []index.Key { return servicesOf(x.PutSlice(version(uid, at, 1))) }
	}
	kept := version("a", "10", 2)
	for _, step := range []struct {
		name string
		do   func() []index.Key
		news bool
		want string
		free bool
	}{
		{name: "first event", do: put("a", "5"), news: true, want: "a@5"},
		{name: "answer to our write", do: func() []index.Key { x.PutWrittenSlice(kept); return nil }, want: "a@10"},
		{name: "late event of an older version", do: put("a", "7"), want: "a@10"},
		{name: "event of our write", do: put("a", "10"), want: "a@10"},
		{name: "write of another writer", do: put("a", "12"), news: true, want: "a@12"},
		{name: "late answer to an older write", do: func() []index.Key { x.PutWrittenSlice(version("a", "11", 1)); return nil }, want: "a@12"},
		{name: "our deletion", do: func() []index.Key { x.PutTombstone(version("a", "12", 1)); return nil }},
		{name: "late event from before the deletion", do: put("a", "12")},
		{name: "successor before the event of the deletion", do: put("b", "14"), news: true, want: "b@14"},
		{name: "event of the deletion", do: func() []index.Key { return x.DeleteSlice(version("a", "13", 1)) }, want: "b@14"},
		{name: "late answer to the deletion", do: func() []index.Key { x.PutTombstone(version("a", "12", 1)); return nil }, want: "b@14"},
		{name: "another writer deletes the successor", do: func() []index.Key { return x.DeleteSlice(version("b", "15", 1)) }, news: true, free: true},
		{name: "late answer to a deletion of the successor", do: func() []index.Key { x.PutTombstone(version("b", "14", 1)); return nil }, free: true},
	} {
		if news := len(step.do()) > 0; news != step.news {
			t.Errorf("%s: news is %t, want %t", step.name, news, step.news)
		}
		if got := held(x); got != step.want {
			t.Errorf("%s: holds %q, want %q", step.name, got, step.want)
		}
		if _, _, _, taken := x.SliceVersion(key("s")); taken == step.free {
			t.Errorf("%s: name is free: %t, want %t", step.name, !taken, step.free)
		}
	}
}

func TestPutSlice_KeepsTheWrittenObjectOfTheSameVersion(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	own := version("a", "10", 1)
	x.PutSlice(version("a", "10", 1))
	x.PutWrittenSlice(own)
	x.PutSlice(version("a", "10", 1))
	if _, slices, _ := x.Slices(key("web")); slices[0] != own {
		t.Error("the object of the watch replaced the written one")
	}
}

func servicesOf(services []index.Key, _ index.SliceEdit) []index.Key { return services }

// Only an edit of what slicesvc writes may be contention.
func TestPutSlice_SaysWhatWasEdited(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*discoveryv1.EndpointSlice)
		want index.SliceEdit
	}{
		"annotation": {func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"a": "b"} }, index.EditedMetadata},
		"finalizer":  {func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.com/x"} }, index.EditedMetadata},
		"further owner": {func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{UID: "x"})
		}, index.EditedMetadata},
		"foreign label":   {func(s *discoveryv1.EndpointSlice) { s.Labels["other"] = "x" }, index.EditedForeignLabels},
		"Service's label": {func(s *discoveryv1.EndpointSlice) { s.Labels["team"] = "x" }, index.EditedContent},
		"headless label":  {func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }, index.EditedContent},
		"manager":         {func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "x" }, index.EditedContent},
		"owner":           {func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }, index.EditedContent},
		"readiness":       {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = nil }, index.EditedContent},
		"zone":            {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = nil }, index.EditedContent},
		"endpoints":       {func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }, index.EditedContent},
		"ports":           {func(s *discoveryv1.EndpointSlice) { s.Ports = nil }, index.EditedContent},
		"recreated":       {func(s *discoveryv1.EndpointSlice) { s.UID = "another" }, index.EditedContent},
	} {
		t.Run(name, func(t *testing.T) {
			x := index.New(slicetest.ManagedBy, 1)
			service := slicetest.Service("web", func(service *corev1.Service) { service.Labels = map[string]string{"team": "a"} })
			x.PutService(service)
			slice := slicetest.Slice(service, "web-a", slicetest.Pods(0, 2))
			slice.Labels["team"] = "a"
			slice.ResourceVersion = "1"
			if _, got := x.PutSlice(slice); got != index.EditedContent {
				t.Errorf("a new slice is edit %d", got)
			}
			edited := slice.DeepCopy()
			edited.ResourceVersion = "2"
			c.edit(edited)
			if _, got := x.PutSlice(edited); got != c.want {
				t.Errorf("edit is %d, want %d", got, c.want)
			}
		})
	}
}
