package index_test

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// model is a simple index: it keeps objects and scans all of them.
type model struct {
	services map[string]*corev1.Service
	pods     map[string]*corev1.Pod
}

func (m *model) podsOf(service string) []string {
	var names []string
	for name, pod := range m.pods {
		if m.selects(m.services[service], pod) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (m *model) servicesOf(pod *corev1.Pod) map[string]bool {
	names := map[string]bool{}
	for name, service := range m.services {
		if pod != nil && m.selects(service, pod) {
			names[name] = true
		}
	}
	return names
}

func (m *model) selects(service *corev1.Service, pod *corev1.Pod) bool {
	if !index.Managed(service) {
		return false
	}
	for key, value := range service.Spec.Selector {
		if pod.Labels[key] != value {
			return false
		}
	}
	return true
}

func podsOf(x *index.Index, service string) []string {
	snapshot, _ := x.Snapshot(key(service))
	var names []string
	for candidate := range snapshot.Candidates() {
		names = append(names, candidate.Pod.Name)
	}
	slices.Sort(names)
	return names
}

func TestIndex_AgreesWithTheModel(t *testing.T) {
	drawLabels := func(t *rapid.T) map[string]string {
		return rapid.MapOfN(rapid.SampledFrom([]string{"app", "tier"}), rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "labels")
	}
	rapid.Check(t, func(t *rapid.T) {
		x := index.New(slicetest.ManagedBy, shards)
		m := &model{services: map[string]*corev1.Service{}, pods: map[string]*corev1.Pod{}}
		t.Repeat(map[string]func(*rapid.T){
			"put service": func(t *rapid.T) {
				name := fmt.Sprintf("svc-%d", rapid.IntRange(0, 3).Draw(t, "service"))
				m.services[name] = slicetest.Service(name, func(service *corev1.Service) { service.Spec.Selector = drawLabels(t) })
				x.PutService(m.services[name])
			},
			"delete service": func(t *rapid.T) {
				name := fmt.Sprintf("svc-%d", rapid.IntRange(0, 3).Draw(t, "service"))
				delete(m.services, name)
				x.DeleteService(key(name))
			},
			"put pod": func(t *rapid.T) {
				name := fmt.Sprintf("pod-%d", rapid.IntRange(0, 5).Draw(t, "pod"))
				ready := rapid.Bool().Draw(t, "ready")
				pod := slicetest.Pod(name, "10.1.0.1", func(pod *corev1.Pod) {
					pod.Labels = drawLabels(t)
					pod.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
					if !ready {
						slicetest.Unready(pod)
					}
				})
				want := affected(m, m.pods[name], pod)
				m.pods[name] = pod
				checkEffect(t, want, x.PutPod(pod))
			},
			"delete pod": func(t *rapid.T) {
				name := fmt.Sprintf("pod-%d", rapid.IntRange(0, 5).Draw(t, "pod"))
				want := affected(m, m.pods[name], nil)
				delete(m.pods, name)
				checkEffect(t, want, x.DeletePod(slicetest.Pod(name, "10.1.0.1")))
			},
			"": func(t *rapid.T) {
				for name := range m.services {
					if diff := gocmp.Diff(m.podsOf(name), podsOf(x, name), cmpopts.EquateEmpty()); diff != "" {
						t.Fatalf("pods of %s (-want +got):\n%s", name, diff)
					}
				}
				if diff := gocmp.Diff(m.counts(), x.Counts(everyShard())); diff != "" {
					t.Fatalf("counts (-want +got):\n%s", diff)
				}
				checkShards(t, x, m)
			},
		})
	})
}

func (m *model) counts() index.Counts {
	counts := index.Counts{Services: len(m.services), Pods: len(m.pods)}
	for _, service := range m.services {
		if index.Managed(service) {
			counts.Managed++
		}
	}
	return counts
}

// checkShards expects every Service in its shard and in no other.
func checkShards(t *rapid.T, x *index.Index, m *model) {
	for _, number := range everyShard() {
		var want []index.Key
		for name := range m.services {
			if shard.Of(slicetest.Namespace, name, shards) == number {
				want = append(want, key(name))
			}
		}
		slices.SortFunc(want, index.CompareKeys)
		if diff := gocmp.Diff(want, x.ShardKeys(number), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Services of shard %d (-want +got):\n%s", number, diff)
		}
		if got := x.Counts([]int{number}).Services; got != len(want) {
			t.Fatalf("shard %d counts %d Services, want %d", number, got, len(want))
		}
	}
}

// affected returns the Services that a change from one Pod to the other affects; nil stands for no
// Pod.
func affected(m *model, before, after *corev1.Pod) []index.Key {
	was, is := m.servicesOf(before), m.servicesOf(after)
	changed := before == nil || after == nil ||
		before.Spec.NodeName != after.Spec.NodeName ||
		before.Status.Conditions[0].Status != after.Status.Conditions[0].Status
	var names []string
	for name := range m.services {
		if (was[name] || is[name]) && (changed || was[name] != is[name]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return keys(names...)
}

func checkEffect(t *rapid.T, want []index.Key, got index.Effect) {
	if diff := gocmp.Diff(want, got.Services, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("affected Services (-want +got):\n%s", diff)
	}
}
