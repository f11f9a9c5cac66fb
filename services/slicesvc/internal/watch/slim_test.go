package watch

import (
	"bytes"
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func fullNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", UID: "uid-of-a", ResourceVersion: "5",
			Labels:      map[string]string{corev1.LabelTopologyZone: "z", "node-role.kubernetes.io/control-plane": "", "x": "y"},
			Annotations: map[string]string{"a": "b"},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3900m"), corev1.ResourceMemory: resource.MustParse("7Gi")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeDiskPressure}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Up"}},
			Images:      []corev1.ContainerImage{{Names: []string{"i"}, SizeBytes: 7}},
		},
	}
}

func fullSlice() *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), "web-1", slicetest.Pods(0, 3), func(slice *discoveryv1.EndpointSlice) {
		slice.Annotations = map[string]string{"note": "keep"}
		slice.Finalizers = []string{"example.com/wait"}
		slice.Generation = 3
		slice.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "a", Operation: "Update", Time: &metav1.Time{Time: slicetest.CreationTime()}, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:endpoints":{}}`)},
			{Manager: "b", Operation: "Apply"},
		}
	})
}

// wrapped is an object as the kube-apiserver sends it.
func wrapped(t testing.TB, object runtime.Object, kind string) []byte {
	t.Helper()
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	if kind == "EndpointSlice" {
		object.GetObjectKind().SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind(kind))
	}
	var data bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &data); err != nil {
		t.Fatal(err)
	}
	return data.Bytes()
}

func decoders() (slim, whole runtime.Decoder) {
	whole = scheme.Codecs.WithoutConversion().DecoderToVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)
	return slimDecoder{whole: whole, wanted: newTrees()}, whole
}

// kept is what of a decoded object is put.
func kept(t testing.TB, object runtime.Object) any {
	t.Helper()
	switch typed := object.(type) {
	case *corev1.Pod, *podSighting:
		pod, ok := podOf(typed)
		if !ok {
			return "no pod"
		}
		return stripPod(pod)
	case *corev1.Node:
		return stripNode(typed)
	case *corev1.Service:
		return stripService(typed)
	case *discoveryv1.EndpointSlice, *sighting:
		seen, _ := sightingOf(typed)
		slice, err := seen.slice()
		if err != nil {
			return err.Error()
		}
		slice.TypeMeta = metav1.TypeMeta{}
		return slice
	default:
		return object
	}
}

func samples(t testing.TB) map[string][]byte {
	return map[string][]byte{
		"pod":     wrapped(t, fullPod(), "Pod"),
		"node":    wrapped(t, fullNode(), "Node"),
		"service": wrapped(t, fullService(), "Service"),
		"slice":   wrapped(t, fullSlice(), "EndpointSlice"),
		"bookmark": wrapped(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "12",
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}, "Pod"),
		"status": wrapped(t, &metav1.Status{Status: metav1.StatusFailure, Code: 410}, "Status"),
	}
}

func TestSlim_KeepsWhatTheWholeWouldGive(t *testing.T) {
	slim, whole := decoders()
	for name, data := range samples(t) {
		want, err := runtime.Decode(whole, data)
		if err != nil {
			t.Fatal(err)
		}
		got, err := runtime.Decode(slim, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(kept(t, want), kept(t, got)); diff != "" {
			t.Errorf("%s (-whole +slim):\n%s", name, diff)
		}
	}
}

func TestSlim_DecodesLittle(t *testing.T) {
	slim, _ := decoders()
	object, err := runtime.Decode(slim, samples(t)["pod"])
	if err != nil {
		t.Fatal(err)
	}
	if pod, ok := podOf(object.(*podSighting)); !ok || pod.ManagedFields[0].Manager != "" || pod.ManagedFields[0].Time == nil || pod.Annotations != nil || pod.Spec.Containers[0].Image != "" {
		t.Errorf("the pod has what nobody wants: %+v", pod)
	}
	object, err = runtime.Decode(slim, samples(t)["slice"])
	if err != nil {
		t.Fatal(err)
	}
	if seen, ok := object.(*sighting); !ok || seen.whole != nil || seen.Name != "web-1" || seen.ManagedFields[0].FieldsV1 != nil {
		t.Errorf("the slice came as %+v, want its metadata alone", object)
	}
}

func TestSlim_Lists(t *testing.T) {
	slim, whole := decoders()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Pod{*fullPod(), *fullPod()}}
	data := wrapped(t, list, "PodList")
	var want, got corev1.PodList
	for into, decoder := range map[*corev1.PodList]runtime.Decoder{&want: whole, &got: slim} {
		if _, _, err := decoder.Decode(data, nil, into); err != nil {
			t.Fatal(err)
		}
	}
	if diff := gocmp.Diff(want.ListMeta, got.ListMeta); diff != "" {
		t.Errorf("list (-whole +slim):\n%s", diff)
	}
	if len(got.Items) != 2 || got.Items[1].Annotations != nil {
		t.Fatalf("items are %v, want two without annotations", got.Items)
	}
	if diff := gocmp.Diff(stripPod(&want.Items[1]), stripPod(&got.Items[1])); diff != "" {
		t.Errorf("item (-whole +slim):\n%s", diff)
	}
}

// Whatever the bytes are: where the decoder of the whole makes something of
// them, the slim one makes the same of them as far as it is used, and it never
// panics. What it refuses the other refuses, too.
func FuzzSlim_AgreesWithTheWhole(f *testing.F) {
	for _, data := range samples(f) {
		f.Add(data)
	}
	slim, whole := decoders()
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := runtime.Decode(slim, data)
		want, wholeErr := runtime.Decode(whole, data)
		if wholeErr != nil {
			return // broken in a field that nobody wants, perhaps
		}
		if err != nil {
			t.Fatalf("slim fails with %v, the whole does not", err)
		}
		if diff := gocmp.Diff(kept(t, want), kept(t, got)); diff != "" {
			t.Errorf("(-whole +slim):\n%s", diff)
		}
	})
}

// typicalPod is as large as pods are: most of it is of no interest.
func typicalPod(i int) *corev1.Pod {
	return slicetest.Pod(fmt.Sprintf("web-5d8f7c6b9-%05d", i), slicetest.Address(i), func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "web", "tier": "front", "pod-template-hash": "5d8f7c6b9"}
		pod.Annotations = map[string]string{"checksum/config": strings.Repeat("0123456789abcdef", 4)}
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d8f7c6b9", UID: "0b4c3a1e", Controller: &controller}}
		for _, manager := range []string{"kube-controller-manager", "kubelet"} {
			pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: manager, Operation: "Update", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:metadata":{"f:labels":{}}}`, 40)),
			})
		}
		for _, name := range []string{"main", "sidecar"} {
			container := corev1.Container{Name: name, Image: "registry.example.com/team/" + name + ":v1.2.3"}
			container.Ports = []corev1.ContainerPort{{Name: "http-" + name[:4], ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
			for j := range 20 {
				container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: "some value of it"})
			}
			pod.Spec.Containers = append(pod.Spec.Containers, container)
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: name, Image: container.Image, ImageID: strings.Repeat("sha256:0123456789abcdef", 3), ContainerID: strings.Repeat("0123456789abcdef", 4),
			})
		}
		for _, kind := range []corev1.PodConditionType{"PodScheduled", "Initialized", "ContainersReady", "PodReadyToStartContainers"} {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(slicetest.CreationTime())})
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	slim, whole := decoders()
	hundred := slicetest.Slice(slicetest.Service("web"), "web-1", slicetest.Pods(0, 100))
	for name, data := range map[string][]byte{
		"pod":   wrapped(b, typicalPod(0), "Pod"),
		"slice": wrapped(b, hundred, "EndpointSlice"),
	} {
		for how, decoder := range map[string]runtime.Decoder{"whole": whole, "slim": slim} {
			b.Run(name+"/"+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := runtime.Decode(decoder, data); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkKept is what a cluster's pods take in memory.
func BenchmarkKept(b *testing.B) {
	const pods = 5000
	slim, whole := decoders()
	var messages [][]byte
	for i := range pods {
		messages = append(messages, wrapped(b, typicalPod(i), "Pod"))
	}
	for name, c := range map[string]struct {
		decoder runtime.Decoder
		keep    func(*corev1.Pod) *corev1.Pod
	}{
		"whole": {decoder: whole, keep: func(pod *corev1.Pod) *corev1.Pod { return pod }},
		"strip": {decoder: whole, keep: stripPod},
		"slim": {decoder: slim, keep: func() func(*corev1.Pod) *corev1.Pod {
			words := newVocabulary()
			return func(pod *corev1.Pod) *corev1.Pod {
				kept := stripPod(pod)
				words.ofPod(kept)
				return kept
			}
		}()},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				all := make([]*corev1.Pod, 0, pods)
				for _, message := range messages {
					object, err := runtime.Decode(c.decoder, message)
					if err != nil {
						b.Fatal(err)
					}
					pod, ok := podOf(object)
					if !ok {
						b.Fatalf("%T is no pod", object)
					}
					all = append(all, c.keep(pod))
				}
				b.ReportMetric(float64(heap()-before)/pods, "B/pod")
				goruntime.KeepAlive(all)
			}
		})
	}
}

func heap() uint64 {
	goruntime.GC()
	var stats goruntime.MemStats
	goruntime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
