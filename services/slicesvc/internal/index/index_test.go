package index_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// shards is enough for Services to be apart and few enough to be together.
const shards = 4

func everyShard() []int { return []int{0, 1, 2, 3} }

func key(name string) index.Key { return index.Key{Namespace: slicetest.Namespace, Name: name} }

func keys(names ...string) []index.Key {
	var all []index.Key
	for _, name := range names {
		all = append(all, key(name))
	}
	return all
}

func labels(pairs ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels = toMap(pairs) }
}

func selector(pairs ...string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.Selector = toMap(pairs) }
}

func toMap(pairs []string) map[string]string {
	all := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

// filled has Services web and api, which share the label tier, and all, which
// selects by it, and the pods web-0 and api-0.
func filled() *index.Index {
	x := index.New(slicetest.ManagedBy, shards)
	x.PutNode("node-a", hints.Node{Zone: "zone-a"})
	x.PutService(slicetest.Service("web", selector("tier", "front", "app", "web")))
	x.PutService(slicetest.Service("api", selector("tier", "front", "app", "api")))
	x.PutService(slicetest.Service("all", selector("tier", "front")))
	x.PutPod(slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "web")))
	x.PutPod(slicetest.Pod("api-0", "10.1.0.2", labels("tier", "front", "app", "api")))
	return x
}

func TestPutPod_NamesTheServicesAChangeConcerns(t *testing.T) {
	web := labels("tier", "front", "app", "web")
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want []index.Key
	}{
		"nothing":             {pod: slicetest.Pod("web-0", "10.1.0.1", web)},
		"annotations":         {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Annotations = toMap([]string{"a", "b"}) })},
		"a label nobody uses": {pod: slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "web", "x", "y"))},
		"readiness":           {pod: slicetest.Pod("web-0", "10.1.0.1", web, slicetest.Unready), want: keys("all", "web")},
		"deletion":            {pod: slicetest.Pod("web-0", "10.1.0.1", web, slicetest.Terminating), want: keys("all", "web")},
		"address":             {pod: slicetest.Pod("web-0", "10.1.0.9", web), want: keys("all", "web")},
		"phase":               {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }), want: keys("all", "web")},
		"Pending to Running":  {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending })},
		"node":                {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Spec.NodeName = "node-b" }), want: keys("all", "web")},
		"hostname":            {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.Spec.Hostname = "h" }), want: keys("all", "web")},
		"made again":          {pod: slicetest.Pod("web-0", "10.1.0.1", web, func(pod *corev1.Pod) { pod.UID = "new" }), want: keys("all", "web")},
		"relabelled":          {pod: slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "api")), want: keys("api", "web")},
		"relabelled, unready": {pod: slicetest.Pod("web-0", "10.1.0.1", labels("tier", "front", "app", "api"), slicetest.Unready), want: keys("all", "api", "web")},
		"labels gone":         {pod: slicetest.Pod("web-0", "10.1.0.1", labels()), want: keys("all", "web")},
		"new":                 {pod: slicetest.Pod("web-1", "10.1.0.3", web), want: keys("all", "web")},
		"new, of no Service":  {pod: slicetest.Pod("job-0", "10.1.0.3", labels("app", "job"))},
		"another namespace":   {pod: slicetest.Pod("web-0", "10.1.0.3", web, func(pod *corev1.Pod) { pod.Namespace = "elsewhere" })},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := gocmp.Diff(c.want, filled().PutPod(c.pod).Services); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPutPod_TellsWhenReadinessChanged(t *testing.T) {
	web := labels("tier", "front", "app", "web")
	later := slicetest.CreationTime().Add(time.Hour)
	turned := func(pod *corev1.Pod) {
		slicetest.Unready(pod)
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(later)
	}
	x := filled()
	if got := x.PutPod(slicetest.Pod("web-0", "10.1.0.1", web, turned)).Time; !got.Equal(later) {
		t.Errorf("change of readiness came about at %v, want %v", got, later)
	}
	if got := x.PutPod(slicetest.Pod("web-0", "10.1.0.7", web, turned)).Time; !got.IsZero() {
		t.Errorf("change of address came about at %v, though nothing says when", got)
	}
	want := slicetest.CreationTime().Add(time.Minute)
	if got := x.PutPod(slicetest.Pod("web-1", "10.1.0.8", web)).Time; !got.Equal(want) {
		t.Errorf("new pod became ready at %v, want %v", got, want)
	}
}

func TestDeletePod_NamesTheServicesThatLoseIt(t *testing.T) {
	x := filled()
	if diff := gocmp.Diff(keys("all", "web"), x.DeletePod(slicetest.Pod("web-0", "10.1.0.1")).Services); diff != "" {
		t.Errorf("Services (-want +got):\n%s", diff)
	}
	if again := x.DeletePod(slicetest.Pod("web-0", "10.1.0.1")).Services; again != nil {
		t.Errorf("deleted twice, the second time concerning %v", again)
	}
	if got := podsOf(x, "all"); !gocmp.Equal(got, []string{"api-0"}) {
		t.Errorf("pods of all are %v, want api-0", got)
	}
}

func TestPutNode_WakesThoseWhoWaitForIt(t *testing.T) {
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

func TestPutSlice_NamesServicesBeforeAndAfter(t *testing.T) {
	service, other := slicetest.Service("web"), slicetest.Service("api")
	foreign := func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "somebody" }
	x := index.New(slicetest.ManagedBy, shards)
	for i, step := range []struct {
		name  string
		slice *discoveryv1.EndpointSlice
		want  []index.Key
	}{
		{name: "new", slice: slicetest.Slice(service, "s", slicetest.Pods(0, 2)), want: keys("web")},
		{name: "changed", slice: slicetest.Slice(service, "s", slicetest.Pods(0, 3)), want: keys("web")},
		{name: "moved to another Service", slice: slicetest.Slice(other, "s", nil), want: keys("web", "api")},
		{name: "taken away by another manager", slice: slicetest.Slice(other, "s", nil, foreign), want: keys("api")},
		{name: "still theirs", slice: slicetest.Slice(service, "s", nil, foreign)},
		{name: "given back", slice: slicetest.Slice(service, "s", slicetest.Pods(0, 1)), want: keys("web")},
	} {
		step.slice.ResourceVersion = fmt.Sprint(10 + i)
		if diff := gocmp.Diff(step.want, x.PutSlice(step.slice), cmpopts.EquateEmpty()); diff != "" {
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

func TestManagement(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Service)
		want   index.Unmanaged
	}{
		"selector":       {change: func(*corev1.Service) {}, want: index.Managed},
		"nil selector":   {change: func(s *corev1.Service) { s.Spec.Selector = nil }, want: index.NoSelector},
		"empty selector": {change: selector(), want: index.NoSelector},
		"ExternalName":   {change: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, want: index.ExternalName},
	} {
		service := slicetest.Service("web", c.change)
		if got := index.Management(service); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		x := index.New(slicetest.ManagedBy, shards)
		x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
		x.PutService(service)
		snapshot, _ := x.Snapshot(key("web"))
		if selects := len(slices.Collect(snapshot.Candidates())) > 0; selects != (c.want == index.Managed) {
			t.Errorf("%s: selects pods: %t", name, selects)
		}
	}
}

// A label that all Services share must not lead each pod to all of them.
func TestPutService_IsFiledUnderItsOwnLabel(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		x.PutService(slicetest.Service(name, selector("all", "same", "zzz", name)))
	}
	if got := index.Crowding(x, slicetest.Namespace); got != 1 {
		t.Errorf("%d Services are filed under one pair, want 1", got)
	}
}

// first returns one of the candidates, of which there must be some.
func first(t *testing.T, snapshot index.Snapshot) desired.Candidate {
	t.Helper()
	for candidate := range snapshot.Candidates() {
		return candidate
	}
	t.Fatal("there is no candidate")
	return desired.Candidate{}
}

// What is not kept of a pod cannot be used for an endpoint, nor to explain one.
func TestPod_IsGivenBackWithAllThatEndpointsAreMadeFrom(t *testing.T) {
	x := index.New(slicetest.ManagedBy, 1)
	grace, always := int64(30), corev1.ContainerRestartPolicyAlways
	asked := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: slicetest.Namespace, Name: "web-0", UID: "uid-0", ResourceVersion: "7", Labels: map[string]string{"app": "web"},
			DeletionTimestamp: &asked, DeletionGracePeriodSeconds: &grace,
		},
		Spec: corev1.PodSpec{
			NodeName: "node-a", Hostname: "db", Subdomain: "web",
			Containers:     []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
			InitContainers: []corev1.Container{{RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "mesh", ContainerPort: 15000}}}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			PodIPs:     []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: asked}},
		},
	}
	x.PutPod(want.DeepCopy())
	got, _ := x.Pod(key("web-0"))
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the pod (-as put in +as kept):\n%s", diff)
	}
}
