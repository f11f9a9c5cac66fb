package index_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// shards is such that some Services share a shard and some do not.
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

// filled returns an Index with Services web and api, whose selectors share the label tier, Service
// all, which selects by that label alone, and the Pods web-0 and api-0.
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

func TestUnmanagedReasonOf(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Service)
		want   index.UnmanagedReason
	}{
		"selector":       {change: func(*corev1.Service) {}, want: ""},
		"nil selector":   {change: func(s *corev1.Service) { s.Spec.Selector = nil }, want: index.NoSelector},
		"empty selector": {change: selector(), want: index.NoSelector},
		"ExternalName":   {change: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, want: index.ExternalName},
	} {
		service := slicetest.Service("web", c.change)
		if got := index.UnmanagedReasonOf(service); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		x := index.New(slicetest.ManagedBy, shards)
		x.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
		x.PutService(service)
		snapshot, _ := x.Snapshot(key("web"))
		if selects := len(slices.Collect(snapshot.Candidates())) > 0; selects != (c.want == "") {
			t.Errorf("%s: selects pods: %t", name, selects)
		}
	}
}

// A label that all Services share must not lead each Pod to all of them.
func TestPutService_IsFiledUnderItsOwnLabel(t *testing.T) {
	x := index.New(slicetest.ManagedBy, shards)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		x.PutService(slicetest.Service(name, selector("all", "same", "zzz", name)))
	}
	if got := index.MaxServicesPerPair(x, slicetest.Namespace); got != 1 {
		t.Errorf("%d Services are filed under one pair, want 1", got)
	}
}

// first returns one of the candidates. The test fails if there is none.
func first(t *testing.T, snapshot index.Snapshot) desired.Candidate {
	t.Helper()
	for candidate := range snapshot.Candidates() {
		return candidate
	}
	t.Fatal("there is no candidate")
	return desired.Candidate{}
}

// Endpoints and explanations can use only the fields that are kept.
func TestPod_HasAllFieldsThatEndpointsAreMadeFrom(t *testing.T) {
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
	got, _ := x.Candidate(key("web-0"))
	if diff := gocmp.Diff(want, got.Pod); diff != "" {
		t.Errorf("the Pod (-put +kept):\n%s", diff)
	}
}

func TestKeysAfter_PagesHaveAllKeysInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 7))
	x := index.New(slicetest.ManagedBy, 4)
	put := map[index.Key]struct{}{}
	for range 300 {
		service := slicetest.Service(fmt.Sprintf("svc-%d", random.IntN(1000)))
		service.Namespace = fmt.Sprintf("ns-%d", random.IntN(4))
		x.PutService(service)
		put[index.Key{Namespace: service.Namespace, Name: service.Name}] = struct{}{}
	}
	for _, within := range []string{"", "ns-0", "ns-3", "none"} {
		var want []index.Key
		for _, key := range slices.SortedFunc(maps.Keys(put), index.CompareKeys) {
			if within == "" || within == key.Namespace {
				want = append(want, key)
			}
		}
		for _, limit := range []int{1, 2, 7, 100, 1000} {
			var got []index.Key
			for after := (index.Key{}); ; after = got[len(got)-1] {
				page := x.KeysAfter(within, after, limit)
				got = append(got, page...)
				if len(page) < limit {
					break
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%q by %d (-want +got):\n%s", within, limit, diff)
			}
		}
	}
}

func TestKeysAfter_AcceptsAnyKey(t *testing.T) {
	x := index.New(slicetest.ManagedBy, 4)
	x.PutService(slicetest.Service("web"))
	for name, c := range map[string]struct {
		within string
		after  index.Key
		want   []index.Key
	}{
		"before":               {after: index.Key{Namespace: "a", Name: "z"}, want: []index.Key{{Namespace: "shop", Name: "web"}}},
		"a deleted Service":    {after: index.Key{Namespace: "shop", Name: "vase"}, want: []index.Key{{Namespace: "shop", Name: "web"}}},
		"itself":               {after: index.Key{Namespace: "shop", Name: "web"}},
		"behind":               {after: index.Key{Namespace: "z", Name: "a"}},
		"behind the namespace": {within: "shop", after: index.Key{Namespace: "z", Name: "a"}},
	} {
		if diff := gocmp.Diff(c.want, x.KeysAfter(c.within, c.after, 10)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// BenchmarkPutPod_Flip is one readiness flip among 1,000 Services of 20 Pods in one namespace,
// where upstream scans all Services.
func BenchmarkPutPod_Flip(b *testing.B) {
	x := index.New(slicetest.ManagedBy, shards)
	for i := range 1000 {
		app := fmt.Sprintf("app-%d", i)
		x.PutService(slicetest.Service(app, selector("app", app, "tier", "same")))
		for j := range 20 {
			x.PutPod(slicetest.Pod(fmt.Sprintf("%s-%d", app, j), "10.1.0.1", labels("app", app, "tier", "same", "hash", app)))
		}
	}
	var flip [2]*corev1.Pod
	for i := range flip {
		flip[i] = slicetest.Pod("app-500-7", "10.1.0.1", labels("app", "app-500", "tier", "same", "hash", "app-500"))
	}
	slicetest.Unready(flip[1])
	b.ReportAllocs()
	turn := 0
	for b.Loop() {
		turn++
		if effect := x.PutPod(flip[turn%2]); len(effect.Services) != 1 {
			b.Fatalf("affects %v, want one Service", effect.Services)
		}
	}
}
