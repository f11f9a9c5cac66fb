package index_test

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// version is slice s of Service web with so many endpoints.
func version(uid, version string, endpoints int) *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), "s", slicetest.Pods(0, endpoints), func(slice *discoveryv1.EndpointSlice) {
		slice.UID, slice.ResourceVersion = types.UID(uid), version
	})
}

// held tells which version of slice s the index gives for Service web.
func held(x *index.Index) string {
	_, slices, _ := x.Slices(key("web"))
	if len(slices) != 1 {
		return ""
	}
	return string(slices[0].UID) + "@" + slices[0].ResourceVersion
}

func TestSlices_OwnWritesAreSeenAtOnceAndEchoesAreNoNews(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	put := func(uid, at string) func() []index.Key {
		return func() []index.Key { return x.PutSlice(version(uid, at, 1)) }
	}
	kept := version("a", "10", 2)
	for _, step := range []struct {
		name string
		do   func() []index.Key
		news bool
		want string
		free bool
	}{
		{name: "first seen", do: put("a", "5"), news: true, want: "a@5"},
		{name: "our write is answered", do: func() []index.Key { x.PutWrittenSlice(kept); return nil }, want: "a@10"},
		{name: "an older event comes late", do: put("a", "7"), want: "a@10"},
		{name: "our write's event", do: put("a", "10"), want: "a@10"},
		{name: "somebody else's write", do: put("a", "12"), news: true, want: "a@12"},
		{name: "an answer that comes late", do: func() []index.Key { x.PutWrittenSlice(version("a", "11", 1)); return nil }, want: "a@12"},
		{name: "we delete it", do: func() []index.Key { x.PutTombstone(version("a", "12", 1)); return nil }},
		{name: "an event from before", do: put("a", "12")},
		{name: "it is made again before its end is shown", do: put("b", "14"), news: true, want: "b@14"},
		{name: "the end of the first one", do: func() []index.Key { return x.DeleteSlice(version("a", "13", 1)) }, want: "b@14"},
		{name: "we hear late that the first one was deleted", do: func() []index.Key { x.PutTombstone(version("a", "12", 1)); return nil }, want: "b@14"},
		{name: "somebody deletes the second", do: func() []index.Key { return x.DeleteSlice(version("b", "15", 1)) }, news: true, free: true},
		{name: "we hear late that it was deleted", do: func() []index.Key { x.PutTombstone(version("b", "14", 1)); return nil }, free: true},
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

func TestPutSlice_KeepsOurOwnCopyOfAnEcho(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	own := version("a", "10", 1)
	x.PutSlice(version("a", "10", 1))
	x.PutWrittenSlice(own)
	x.PutSlice(version("a", "10", 1))
	if _, slices, _ := x.Slices(key("web")); slices[0] != own {
		t.Error("the copy of the watch is kept instead of ours")
	}
}

func TestPutPod_SaysHowUrgentItIsAndSinceWhen(t *testing.T) {
	asked := slicetest.CreationTime().Add(2 * time.Hour)
	dying := func(pod *corev1.Pod) {
		grace := int64(30)
		pod.DeletionTimestamp = &metav1.Time{Time: asked.Add(30 * time.Second)}
		pod.DeletionGracePeriodSeconds = &grace
	}
	unready := slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready)
	ready := slicetest.Pod("web-0", "10.1.0.1")
	moved := slicetest.Pod("web-0", "10.1.0.9", slicetest.Unready)
	for name, c := range map[string]struct {
		before, after *corev1.Pod
		want          index.Effect
	}{
		"comes unready":    {after: unready, want: index.Effect{Urgency: index.Normal, Time: slicetest.CreationTime().Add(time.Minute)}},
		"comes ready":      {after: ready, want: index.Effect{Urgency: index.Urgent, Time: slicetest.CreationTime().Add(time.Minute)}},
		"stops serving":    {before: ready, after: unready, want: index.Effect{Urgency: index.Urgent}},
		"moves unready":    {before: unready, after: moved, want: index.Effect{Urgency: index.Normal}},
		"is to be deleted": {before: ready, after: slicetest.Pod("web-0", "10.1.0.1", dying), want: index.Effect{Urgency: index.Urgent, Time: asked}},
		"fails unready": {
			before: unready,
			after: slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready, writtenAt(asked), func(pod *corev1.Pod) {
				pod.Status.Phase = corev1.PodFailed
			}),
			want: index.Effect{Urgency: index.Normal, Time: asked},
		},
		"moves, and says when": {
			before: unready,
			after:  slicetest.Pod("web-0", "10.1.0.9", slicetest.Unready, writtenAt(asked)),
			want:   index.Effect{Urgency: index.Normal, Time: asked},
		},
		"comes, and was written since": {
			after: slicetest.Pod("web-0", "10.1.0.1", writtenAt(asked)),
			want:  index.Effect{Urgency: index.Urgent, Time: slicetest.CreationTime().Add(time.Minute)},
		},
	} {
		x := index.New(slicetest.ManagedBy, shards)
		x.PutService(slicetest.Service("web"))
		if c.before != nil {
			x.PutPod(c.before)
		}
		c.want.Services, c.want.Pods = keys("web"), keys("web-0")
		if diff := gocmp.Diff(c.want, x.PutPod(c.after)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// writtenAt says of a pod that somebody wrote it then, and others before.
func writtenAt(last time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, at := range []time.Time{last.Add(-time.Hour), last, last.Add(-time.Minute)} {
			pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: at}})
		}
	}
}

func TestDeletePod_WasNotRemovedWhenItWasLastWritten(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	if got := x.DeletePod(slicetest.Pod("web-0", "10.1.0.1", writtenAt(slicetest.CreationTime()))).Time; !got.IsZero() {
		t.Errorf("removed at %v, though nothing says when", got)
	}
}

func TestPutNode_WakesOnlyThoseWhoseHintsChange(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	x.PutService(slicetest.Service("near", func(service *corev1.Service) {
		service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	}))
	x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	counted := hints.Node{Zone: "zone-a", MilliCPU: 4000, Counts: true}
	for _, step := range []struct {
		name   string
		node   hints.Node
		pods   []index.Key
		hinted []index.Key
	}{
		{name: "appears", node: counted, pods: keys("web"), hinted: keys("near")},
		{name: "again", node: counted},
		{name: "is not ready", node: hints.Node{Zone: "zone-a", MilliCPU: 4000}, hinted: keys("near")},
		{name: "changes what does not count", node: hints.Node{Zone: "zone-a", MilliCPU: 8000}},
		{name: "moves", node: hints.Node{Zone: "zone-b", MilliCPU: 8000}, pods: keys("web")},
	} {
		effect := x.PutNode("node-a", step.node)
		if diff := gocmp.Diff(step.pods, effect.Services, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: Services of its pods (-want +got):\n%s", step.name, diff)
		}
		if diff := gocmp.Diff(step.hinted, effect.Hinted, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: hinted Services (-want +got):\n%s", step.name, diff)
		}
	}
}
