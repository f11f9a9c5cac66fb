package kube

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

// encode encodes an object as kube-apiserver does.
func encode(t testing.TB, object runtime.Object, kind string) []byte {
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

func decoders() (masked, full runtime.Decoder) {
	full = scheme.Codecs.WithoutConversion().DecoderToVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)
	return maskedDecoder{full: full, masks: newKindMasks()}, full
}

// stripped is what the Handler gets of a decoded object.
func stripped(t testing.TB, object runtime.Object) any {
	t.Helper()
	switch typed := object.(type) {
	case *corev1.Pod, *lazyPod:
		pod, ok := podOf(typed)
		if !ok {
			return "not a pod"
		}
		return strippedPod(pod)
	case *corev1.Node:
		return stripNode(typed)
	case *corev1.Service:
		return stripService(typed)
	case *discoveryv1.EndpointSlice, *lazySlice:
		lazy, _ := lazySliceOf(typed)
		slice, err := lazy.decode()
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
		"pod":     encode(t, fullPod(), "Pod"),
		"node":    encode(t, fullNode(), "Node"),
		"service": encode(t, fullService(), "Service"),
		"slice":   encode(t, fullSlice(), "EndpointSlice"),
		"bookmark": encode(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "12",
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}, "Pod"),
		"status": encode(t, &metav1.Status{Status: metav1.StatusFailure, Code: 410}, "Status"),
	}
}

func TestMaskedDecoder_KeepsUsedFields(t *testing.T) {
	masked, full := decoders()
	for name, data := range samples(t) {
		want, err := runtime.Decode(full, data)
		if err != nil {
			t.Fatal(err)
		}
		got, err := runtime.Decode(masked, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(stripped(t, want), stripped(t, got)); diff != "" {
			t.Errorf("%s (-full +masked):\n%s", name, diff)
		}
	}
}

func TestMaskedDecoder_DecodesLittle(t *testing.T) {
	masked, _ := decoders()
	object, err := runtime.Decode(masked, samples(t)["pod"])
	if err != nil {
		t.Fatal(err)
	}
	if pod, ok := podOf(object.(*lazyPod)); !ok || pod.ManagedFields[0].Manager != "" || pod.ManagedFields[0].Time == nil || pod.Annotations != nil || pod.Spec.Containers[0].Image != "" {
		t.Errorf("the pod has unused fields: %+v", pod)
	}
	object, err = runtime.Decode(masked, samples(t)["slice"])
	if err != nil {
		t.Fatal(err)
	}
	if lazy, ok := object.(*lazySlice); !ok || lazy.decoded != nil || lazy.Name != "web-1" || lazy.ManagedFields[0].FieldsV1 != nil {
		t.Errorf("the slice is %+v, want its metadata alone", object)
	}
}

func TestMaskedDecoder_DecodesLists(t *testing.T) {
	masked, full := decoders()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Pod{*fullPod(), *fullPod()}}
	data := encode(t, list, "PodList")
	var want, got corev1.PodList
	for into, decoder := range map[*corev1.PodList]runtime.Decoder{&want: full, &got: masked} {
		if _, _, err := decoder.Decode(data, nil, into); err != nil {
			t.Fatal(err)
		}
	}
	if diff := gocmp.Diff(want.ListMeta, got.ListMeta); diff != "" {
		t.Errorf("list (-full +masked):\n%s", diff)
	}
	if len(got.Items) != 2 || got.Items[1].Annotations != nil {
		t.Fatalf("items are %v, want two without annotations", got.Items)
	}
	if diff := gocmp.Diff(strippedPod(&want.Items[1]), strippedPod(&got.Items[1])); diff != "" {
		t.Errorf("item (-full +masked):\n%s", diff)
	}
}

// For any bytes that the full decoder decodes, the masked decoder gives the same used fields. It
// never panics, and refuses only what the full decoder refuses.
func FuzzMaskedDecoder_AgreesWithFullDecoder(f *testing.F) {
	for _, data := range samples(f) {
		f.Add(data)
	}
	masked, full := decoders()
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := runtime.Decode(masked, data)
		want, fullErr := runtime.Decode(full, data)
		if fullErr != nil {
			return // the error may be in an unused field
		}
		if err != nil {
			t.Fatalf("masked fails with %v, full does not", err)
		}
		if diff := gocmp.Diff(stripped(t, want), stripped(t, got)); diff != "" {
			t.Errorf("(-full +masked):\n%s", diff)
		}
	})
}

// typicalPod has the size of a real Pod. Most of its fields are unused.
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
	masked, full := decoders()
	hundred := slicetest.Slice(slicetest.Service("web"), "web-1", slicetest.Pods(0, 100))
	for name, data := range map[string][]byte{
		"pod":   encode(b, typicalPod(0), "Pod"),
		"slice": encode(b, hundred, "EndpointSlice"),
	} {
		for kind, decoder := range map[string]runtime.Decoder{"full": full, "masked": masked} {
			b.Run(name+"/"+kind, func(b *testing.B) {
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

// BenchmarkPodMemory is the memory of a cached Pod.
func BenchmarkPodMemory(b *testing.B) {
	const pods = 5000
	masked, full := decoders()
	var messages [][]byte
	for i := range pods {
		messages = append(messages, encode(b, typicalPod(i), "Pod"))
	}
	for name, c := range map[string]struct {
		decoder runtime.Decoder
		keep    func(*corev1.Pod) *corev1.Pod
	}{
		"full":  {decoder: full, keep: func(pod *corev1.Pod) *corev1.Pod { return pod }},
		"strip": {decoder: full, keep: strippedPod},
		"masked": {decoder: masked, keep: func() func(*corev1.Pod) *corev1.Pod {
			shared := newInterner()
			return func(pod *corev1.Pod) *corev1.Pod {
				pod = strippedPod(pod)
				shared.internPod(pod)
				return pod
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
						b.Fatalf("%T is not a pod", object)
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
