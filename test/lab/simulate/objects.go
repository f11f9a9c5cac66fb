package simulate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Label marks simulated objects.
const Label = "trivet.dev/simulated"

// appLabel is the label that Services select.
const appLabel = "app"

func labels(extra ...string) map[string]string {
	set := map[string]string{Label: "true"}
	for i := 0; i+1 < len(extra); i += 2 {
		set[extra[i]] = extra[i+1]
	}
	return set
}

// node returns a Node in one of three zones, with the labels of a kubelet.
func node(i int, now time.Time) *corev1.Node {
	name := nodeName(i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(
			corev1.LabelHostname, name,
			corev1.LabelTopologyRegion, "sim",
			corev1.LabelTopologyZone, zoneName(i),
			corev1.LabelOSStable, "linux",
			corev1.LabelArchStable, "amd64",
		)},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("4"),
				corev1.ResourceMemory: resource.MustParse("16Gi"),
				corev1.ResourcePods:   resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated",
				LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
			}},
		},
	}
}

// service returns one of four kinds in turn: plain, headless, with named ports, and with
// publishNotReadyAddresses.
func service(namespace string, i int) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i), Labels: labels()},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{appLabel: serviceName(i)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	switch i % 4 {
	case 1:
		s.Spec.ClusterIP = corev1.ClusterIPNone
	case 2:
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromString("web")},
			{Name: "metrics", Port: 9090, TargetPort: intstr.FromString("metrics")},
		}
	case 3:
		s.Spec.PublishNotReadyAddresses = true
	}
	return s
}

// outsideName is the name of a Service without a selector, and of its Endpoints object.
const outsideName = "outside-database"

func outsideService(namespace string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: outsideName, Labels: labels()},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}},
	}
}

// outsideEndpoints has two ready addresses and one that is not, all of TEST-NET-2 (RFC 5737).
func outsideEndpoints(namespace string) *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: outsideName, Labels: labels()},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "198.51.100.1"}, {IP: "198.51.100.2"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "198.51.100.3"}},
			Ports:             []corev1.EndpointPort{{Name: "sql", Port: 5432}},
		}},
	}
}

func podObject(namespace string, p pod) *corev1.Pod {
	var noGrace int64
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: p.name, Labels: labels(appLabel, serviceName(p.service)),
		},
		Spec: corev1.PodSpec{
			NodeName:                      nodeName(p.node),
			TerminationGracePeriodSeconds: &noGrace,
			Containers: []corev1.Container{{
				Name: "app", Image: "example.invalid/app:1",
				Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9100}},
			}},
		},
	}
}

// podStatus returns the status that a kubelet would report.
func podStatus(p pod, now time.Time) corev1.PodStatus {
	ready := corev1.ConditionFalse
	if p.ready {
		ready = corev1.ConditionTrue
	}
	at := metav1.NewTime(now)
	return corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: podIP(p.ip), PodIPs: []corev1.PodIP{{IP: podIP(p.ip)}}, StartTime: &at,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", Image: "example.invalid/app:1", Ready: p.ready, Started: &p.ready,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
		}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at},
			{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: at},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: at},
		},
	}
}

// podIP returns the n-th address of 10.244.0.0/14 without addresses that end in 0 or 255. It
// repeats after 260,096 Pods.
func podIP(n int) string {
	const perBlock, blocks = 254, 4 * 256
	n %= perBlock * blocks
	block := n / perBlock
	return fmt.Sprintf("10.%d.%d.%d", 244+block/256, block%256, 1+n%perBlock)
}
