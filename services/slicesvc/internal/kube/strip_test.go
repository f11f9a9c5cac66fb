package kube

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// fullPod has a value in every used field, and in some others.
func fullPod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	named := func(name string, number int32) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, Protocol: corev1.ProtocolTCP, ContainerPort: number, HostPort: 1}, {ContainerPort: 1}}
	}
	return slicetest.Pod("web-0", "10.1.0.1", slicetest.Terminating, func(pod *corev1.Pod) {
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", Time: &metav1.Time{Time: slicetest.CreationTime()}}}
		pod.Annotations = map[string]string{"a": "b"}
		pod.Spec.Hostname, pod.Spec.Subdomain = "host", "web"
		pod.Spec.Containers = []corev1.Container{{Name: "without-ports", Image: "i"}, {Name: "main", Image: "i", Ports: named("http", 8080)}}
		pod.Spec.InitContainers = []corev1.Container{
			{Name: "first", Ports: named("metrics", 1)},
			{Name: "sidecar", RestartPolicy: &always, Ports: named("metrics", 9090)},
		}
		pod.Status.Conditions = append([]corev1.PodCondition{{Type: corev1.PodScheduled}}, pod.Status.Conditions...)
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: "fd00::1"})
	})
}

func fullService() *corev1.Service {
	return slicetest.Service("web", func(service *corev1.Service) {
		service.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		service.Labels = map[string]string{"team": "a"}
		service.Annotations = map[string]string{"a": "b"}
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		service.Spec.PublishNotReadyAddresses = true
		service.Spec.Ports = []corev1.ServicePort{
			slicetest.Port("http", 80, intstr.FromString("http")),
			slicetest.Port("metrics", 90, intstr.FromString("metrics")),
		}
	})
}

// strippedPod is stripPod with a pointer result.
func strippedPod(pod *corev1.Pod) *corev1.Pod {
	stripped := stripPod(pod)
	return &stripped
}

func TestStrip_KeepsEveryUsedField(t *testing.T) {
	t.Parallel()
	plan := func(service *corev1.Service, pod *corev1.Pod) pack.Plan {
		return pack.Make(pack.Input{
			Snapshot:  index.Snapshot{Service: service},
			Owner:     pack.ServiceOwner(service),
			Endpoints: desired.Resolve(service, []desired.Candidate{slicetest.Candidate(pod)}),
			Limit:     100,
			ManagedBy: slicetest.ManagedBy,
		})
	}
	want := plan(fullService(), fullPod())
	if len(want.Changes) != 2 || len(want.Changes[0].Slice.Ports) != 2 || want.Changes[0].Slice.Endpoints[0].Hostname == nil {
		t.Fatalf("plan is %+v, want one that uses every field", want)
	}
	if diff := gocmp.Diff(want, plan(stripService(fullService()), strippedPod(fullPod()))); diff != "" {
		t.Errorf("plan from full (-) and stripped (+) objects:\n%s", diff)
	}
}

// It distinguishes a Pod whose deletion was watched from a Pod that was missing in a list.
func TestStrip_KeepsTheCreationTimestamp(t *testing.T) {
	t.Parallel()
	pod := fullPod()
	pod.CreationTimestamp = metav1.NewTime(slicetest.CreationTime())
	if got := strippedPod(pod).CreationTimestamp; !got.Equal(&pod.CreationTimestamp) {
		t.Errorf("created at %v, want %v", got, pod.CreationTimestamp)
	}
}

func TestStrip_DropsUnusedFields(t *testing.T) {
	t.Parallel()
	pod := strippedPod(fullPod())
	if got := len(pod.Spec.Containers) + len(pod.Spec.InitContainers) + len(pod.Status.Conditions); got != 3 {
		t.Errorf("%d containers and conditions are kept, want 3: %+v", got, pod)
	}
	if diff := gocmp.Diff([]metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: slicetest.CreationTime()}}}, pod.ManagedFields); diff != "" {
		t.Errorf("time of the last write (-want +got):\n%s", diff)
	}
	if pod.Annotations != nil || stripService(fullService()).ManagedFields != nil {
		t.Error("managed fields of a Service or annotations are kept")
	}
	node := stripNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: "z", "x": "y"}},
		Status:     corev1.NodeStatus{Phase: corev1.NodeRunning},
	})
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}
	if diff := gocmp.Diff(want, node); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
}

func TestStrip_SliceKeepsWhatAnUpdateSendsBack(t *testing.T) {
	t.Parallel()
	slice := slicetest.Slice(slicetest.Service("web"), "a", slicetest.Pods(0, 2), func(slice *discoveryv1.EndpointSlice) {
		slice.Annotations = map[string]string{"note": "keep"}
		slice.Finalizers = []string{"example.com/wait"}
		slice.Generation = 3
		slice.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}")}}
	})
	want := slice.DeepCopy()
	want.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	if diff := gocmp.Diff(want, stripSlice(slice)); diff != "" {
		t.Errorf("slice (-want +got):\n%s", diff)
	}
	if slice.ManagedFields[0].FieldsV1 == nil {
		t.Error("the argument was changed")
	}
}

func TestStrip_IsIdempotent(t *testing.T) {
	t.Parallel()
	once := strippedPod(fullPod())
	if diff := gocmp.Diff(once, strippedPod(once)); diff != "" {
		t.Errorf("pod:\n%s", diff)
	}
	service := stripService(fullService())
	if diff := gocmp.Diff(service, stripService(service)); diff != "" {
		t.Errorf("Service:\n%s", diff)
	}
}
