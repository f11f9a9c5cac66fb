package index_test

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestPutPod_NamesTheAffectedServices(t *testing.T) {
	web := labels("tier", "front", "app", "web")
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want []index.Key
	}{
		"nothing":             {pod: slicetest.Pod("web-0", "10.1.0.1", web)},
		"annotations":         {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Annotations = toMap([]string{"a", "b"}) })},
		"an unused label":     {pod: slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "web", "x", "y"))},
		"readiness":           {pod: slicetest.Pod("web-0", "10.1.0.1", web, slicetest.Unready), want: keys("all", "web")},
		"deletion":            {pod: slicetest.Pod("web-0", "10.1.0.1", web, slicetest.Terminating), want: keys("all", "web")},
		"address":             {pod: slicetest.Pod("web-0", "10.1.0.9", web), want: keys("all", "web")},
		"phase":               {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }), want: keys("all", "web")},
		"Pending to Running":  {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending })},
		"node":                {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Spec.NodeName = "node-b" }), want: keys("all", "web")},
		"hostname":            {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Spec.Hostname = "h" }), want: keys("all", "web")},
		"replaced":            {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.UID = "new" }), want: keys("all", "web")},
		"relabelled":          {pod: slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "api")), want: keys("api", "web")},
		"relabelled, unready": {pod: slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "api"), slicetest.Unready), want: keys("all", "api", "web")},
		"labels gone":         {pod: slicetest.Pod("web-0", "10.1.0.1", labels()), want: keys("all", "web")},
		"new":                 {pod: slicetest.Pod("web-1", "10.1.0.3", web), want: keys("all", "web")},
		"new, not selected":   {pod: slicetest.Pod("job-0", "10.1.0.3", labels("app", "job"))},
		"another namespace":   {pod: slicetest.Pod("web-0", "10.1.0.3", web, func(pod *corev1.Pod) { pod.Namespace = "elsewhere" })},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := gocmp.Diff(c.want, filled().PutPod(c.pod).Services); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPutPod_UrgencyAndTime(t *testing.T) {
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

// The change of a Pod that is not ready is urgent only if its Service publishes it all the same.
func TestPutPod_UnreadyPodIsUrgentIfPublished(t *testing.T) {
	for _, published := range []bool{false, true} {
		x := index.New(slicetest.ManagedBy, 1)
		x.PutService(slicetest.Service("web", func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = published }))
		want := index.Normal
		if published {
			want = index.Urgent
		}
		pod := slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready)
		if got := x.PutPod(pod).Urgency; got != want {
			t.Errorf("published %v: a new Pod that is not ready has urgency %d, want %d", published, got, want)
		}
		if got := x.DeletePod(pod).Urgency; got != want {
			t.Errorf("published %v: a deleted Pod that is not ready has urgency %d, want %d", published, got, want)
		}
	}
}

func TestPutPod_TimeIsThatOfTheReadinessChange(t *testing.T) {
	web := labels("tier", "front", "app", "web")
	later := slicetest.CreationTime().Add(time.Hour)
	turned := func(pod *corev1.Pod) {
		slicetest.Unready(pod)
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(later)
	}
	x := filled()
	if got := x.PutPod(slicetest.Pod("web-0", "10.1.0.1", web, turned)).Time; !got.Equal(later) {
		t.Errorf("readiness changed at %v, want %v", got, later)
	}
	if got := x.PutPod(slicetest.Pod("web-0", "10.1.0.7", web, turned)).Time; !got.IsZero() {
		t.Errorf("change of address has time %v, want none", got)
	}
	want := slicetest.CreationTime().Add(time.Minute)
	if got := x.PutPod(slicetest.Pod("web-1", "10.1.0.8", web)).Time; !got.Equal(want) {
		t.Errorf("new pod became ready at %v, want %v", got, want)
	}
}

// writtenAt sets the managed fields of a Pod that was last written then.
func writtenAt(last time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, at := range []time.Time{last.Add(-time.Hour), last, last.Add(-time.Minute)} {
			pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: at}})
		}
	}
}

func TestDeletePod_NamesTheServicesThatLoseIt(t *testing.T) {
	x := filled()
	if diff := gocmp.Diff(keys("all", "web"), x.DeletePod(slicetest.Pod("web-0", "10.1.0.1")).Services); diff != "" {
		t.Errorf("Services (-want +got):\n%s", diff)
	}
	if again := x.DeletePod(slicetest.Pod("web-0", "10.1.0.1")).Services; again != nil {
		t.Errorf("the second deletion affects %v", again)
	}
	if got := podsOf(x, "all"); !gocmp.Equal(got, []string{"api-0"}) {
		t.Errorf("pods of all are %v, want api-0", got)
	}
}

func TestDeletePod_HasNoTime(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	if got := x.DeletePod(slicetest.Pod("web-0", "10.1.0.1", writtenAt(slicetest.CreationTime()))).Time; !got.IsZero() {
		t.Errorf("deletion has time %v, want none", got)
	}
}

func TestPutNode_NamesTheServicesThatWaitForIt(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	snapshot, _ := x.Snapshot(key("web"))
	if first(t, snapshot).NodeKnown {
		t.Error("the node is known before it exists")
	}
	for _, step := range []struct {
		name, node, zone string
		want             []index.Key
	}{
		{name: "appears", node: "node-a", want: keys("web")},
		{name: "is put again", node: "node-a"},
		{name: "gets a zone", node: "node-a", zone: "zone-a", want: keys("web")},
		{name: "moves", node: "node-a", zone: "zone-b", want: keys("web")},
		{name: "is another", node: "node-b", zone: "zone-b"},
	} {
		if diff := gocmp.Diff(step.want, x.PutNode(step.node, hints.Node{Zone: step.zone}).Services, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("node %s: Services (-want +got):\n%s", step.name, diff)
		}
	}
	snapshot, _ = x.Snapshot(key("web"))
	if got := first(t, snapshot); !got.NodeKnown || got.Zone != "zone-b" {
		t.Errorf("candidate is %+v, want a known node in zone-b", got)
	}
	x.DeleteNode("node-a")
	snapshot, _ = x.Snapshot(key("web"))
	if got := first(t, snapshot); got.NodeKnown || got.Zone != "" {
		t.Errorf("candidate is %+v, though the node is gone", got)
	}
	if diff := gocmp.Diff(keys("web"), x.PutNode("node-a", hints.Node{}).Services); diff != "" {
		t.Errorf("node is back: Services (-want +got):\n%s", diff)
	}
}

func TestPutNode_NamesServicesWhoseHintsChange(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutService(slicetest.Service("web"))
	x.PutService(slicetest.Service("near", func(service *corev1.Service) {
		service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	}))
	x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	eligible := hints.Node{Zone: "zone-a", MilliCPU: 4000, Eligible: true}
	for _, step := range []struct {
		name   string
		node   hints.Node
		pods   []index.Key
		hinted []index.Key
	}{
		{name: "appears", node: eligible, pods: keys("web"), hinted: keys("near")},
		{name: "again", node: eligible},
		{name: "is not ready", node: hints.Node{Zone: "zone-a", MilliCPU: 4000}, hinted: keys("near")},
		{name: "changes but is not eligible", node: hints.Node{Zone: "zone-a", MilliCPU: 8000}},
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
