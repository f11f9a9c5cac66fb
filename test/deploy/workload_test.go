package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// Each function here starts a server and returns what keeps it busy: one round of all that makes it
// read and write. Rounds are repeated, so a step that comes too early, or loses a race with
// kube-apiserver's own repairs, is an error of one round.

// exerciseNodeHealth does what exerciseHeartbeats does, and judges nodes and evicts pods. One node
// falls silent, time and again, with a pod on it; another one, which is tainted, gets pods that
// have to leave it.
func exerciseNodeHealth(t *testing.T, in place) func() error {
	beat := beatingNode(t, in, startLeases(t, in, leasesvc.NodeHealthLoop, leasesvc.TaintEvictionLoop))
	fallSilent, evict := silentNode(t, in.kube), taintedNode(t, in.kube)
	return func() error { return errors.Join(beat(), fallSilent(), evict()) }
}

// exerciseHeartbeats has the loops that are on by default, and a node that beats.
func exerciseHeartbeats(t *testing.T, in place) func() error {
	return beatingNode(t, in, startLeases(t, in))
}

// beatingNode has a node beat, takes its Lease away behind leasesvc's back, and has the node leave.
func beatingNode(t *testing.T, in place, conn *grpc.ClientConn) func() error {
	t.Helper()
	client := leasev1.NewHeartbeatServiceClient(conn)
	const node = "beating"
	addNode(t, in.kube, node)
	holder := &leasev1.Holder{Class: "node", Name: node, BootId: "b"}
	sequence := uint64(0)
	leases := in.kube.CoordinationV1().Leases("kube-node-lease")
	written := func() error {
		sequence++
		_, err := client.Heartbeat(t.Context(), &leasev1.HeartbeatRequest{
			Beats: []*leasev1.Beat{{Holder: holder, Sequence: sequence}},
		})
		if err != nil {
			return err
		}
		_, err = leases.Get(t.Context(), node, metav1.GetOptions{})
		return err
	}
	return func() error {
		if err := soon(written); err != nil {
			return err
		}
		if err := leases.Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := soon(written); err != nil {
			return err
		}
		_, err := client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder})
		return err
	}
}

// silentNode returns what has a node and its pod be ready, and waits until they have been marked
// not to be.
func silentNode(t *testing.T, kube kubernetes.Interface) func() error {
	t.Helper()
	const name = "silent"
	addNode(t, kube, name)
	pod, err := kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		if err := errors.Join(reportReady(t.Context(), kube, name), setReady(t.Context(), kube, pod, true)); err != nil {
			return err
		}
		return soon(func() error { return unreachable(t.Context(), kube, pod) })
	}
}

// taintedNode returns what puts a pod on a node that it does not tolerate, waits until it has been
// told to leave, and is its kubelet for that.
func taintedNode(t *testing.T, kube kubernetes.Interface) func() error {
	t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "tainted"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}},
	}
	if _, err := kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := kube.CoreV1().Pods("default")
	return func() error {
		pod, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "tainted-"},
			Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		told := soon(func() error {
			now, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
			if err == nil && now.DeletionTimestamp == nil {
				err = fmt.Errorf("pod %s may still stay", pod.Name)
			}
			return err
		})
		return errors.Join(told, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
}

// reportReady is what a kubelet posts.
func reportReady(ctx context.Context, kube kubernetes.Interface, name string) error {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	_, err = kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// unreachable returns an error until the node has the unreachable taint and its Pod is not ready.
func unreachable(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod) error {
	node, err := kube.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	now, err := kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&unreachable) }) {
		return fmt.Errorf("node %s has the taints %v, not that it is unreachable", node.Name, node.Spec.Taints)
	}
	if now.Status.Conditions[0].Status != corev1.ConditionFalse {
		return fmt.Errorf("pod %s is still ready", pod.Name)
	}
	return nil
}

func addNode(t *testing.T, kube kubernetes.Interface, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// soon gives a server a few seconds to make a condition true.
func soon(condition func() error) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := condition(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// exerciseBootstrap takes away and spoils what bootstrapsvc keeps, and asks for it back.
func exerciseBootstrap(t *testing.T, in place) func() error {
	client := bootstrapv1.NewBaselineServiceClient(startBootstrap(t, in))
	reconcile := func() error {
		_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
		return err
	}
	audited := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "audited"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	audited, err := in.kube.CoreV1().Services("default").Create(t.Context(), audited, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		ctx := t.Context()
		return errors.Join(
			spoilAddress(ctx, in.kube, audited), replaceAddress(ctx, in.kube, audited),
			removeNamespace(ctx, in.kube, "kube-node-lease"), removeBaseline(ctx, in.kube), reconcile(),
			spoilBaseline(ctx, in.kube), reconcile(),
			mistypeSlice(ctx, in.kube), reconcile(),
		)
	}
}

// spoilAddress takes the labels of a Service's IPAddress away, and then the IPAddress, and waits
// until each is there again.
func spoilAddress(ctx context.Context, kube kubernetes.Interface, service *corev1.Service) error {
	addresses := kube.NetworkingV1().IPAddresses()
	address, err := addresses.Get(ctx, service.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil {
		return err
	}
	address.Labels = map[string]string{networkingv1.LabelManagedBy: address.Labels[networkingv1.LabelManagedBy]}
	if _, err := addresses.Update(ctx, address, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := soon(func() error { return allocated(ctx, kube, service) }); err != nil {
		return err
	}
	if err := addresses.Delete(ctx, service.Spec.ClusterIP, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return soon(func() error { return allocated(ctx, kube, service) })
}

// replaceAddress allocates a Service's address in the name of another one, and waits until that is
// put right.
func replaceAddress(ctx context.Context, kube kubernetes.Interface, service *corev1.Service) error {
	addresses := kube.NetworkingV1().IPAddresses()
	address, err := addresses.Get(ctx, service.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := addresses.Delete(ctx, address.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	wrong := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: address.Name, Labels: address.Labels},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "kubernetes"}},
	}
	if _, err := addresses.Create(ctx, wrong, metav1.CreateOptions{}); err != nil {
		return err
	}
	return soon(func() error { return allocated(ctx, kube, service) })
}

// allocated says what is not right yet with a Service's IPAddress.
func allocated(ctx context.Context, kube kubernetes.Interface, service *corev1.Service) error {
	address, err := kube.NetworkingV1().IPAddresses().Get(ctx, service.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if parent := address.Spec.ParentRef; parent.Name != service.Name || address.Labels[networkingv1.LabelIPAddressFamily] != "IPv4" {
		return fmt.Errorf("IPAddress %s is that of %s with labels %v", address.Name, parent.Name, address.Labels)
	}
	return nil
}

// removeNamespace does the namespace controller's part, too. What is in the namespace stays in etcd
// and is there again with the next one of its name.
func removeNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	if err := kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	namespace, err := kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	namespace.Spec.Finalizers = nil
	_, err = kube.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
	return err
}

func removeBaseline(ctx context.Context, kube kubernetes.Interface) error {
	return errors.Join(
		kube.CoreV1().Services("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}),
		kube.CoreV1().Endpoints("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}),
		kube.DiscoveryV1().EndpointSlices("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}),
	)
}

// spoilBaseline changes the port in all three objects.
func spoilBaseline(ctx context.Context, kube kubernetes.Interface) error {
	service, err := kube.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	service.Spec.Ports[0].Name = "spoilt"
	_, serviceErr := kube.CoreV1().Services("default").Update(ctx, service, metav1.UpdateOptions{})
	endpoints, err := kube.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	endpoints.Subsets = nil
	_, endpointsErr := kube.CoreV1().Endpoints("default").Update(ctx, endpoints, metav1.UpdateOptions{})
	slice, err := kube.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	slice.Endpoints, slice.Labels = nil, nil // without its label it is found by its name only
	_, sliceErr := kube.DiscoveryV1().EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
	return errors.Join(serviceErr, endpointsErr, sliceErr)
}

// mistypeSlice puts a slice of the other family in the place of the right one; only a new one can
// replace it.
func mistypeSlice(ctx context.Context, kube kubernetes.Interface) error {
	slices := kube.DiscoveryV1().EndpointSlices("default")
	if err := slices.Delete(ctx, "kubernetes", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err := slices.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv6,
	}, metav1.CreateOptions{})
	return err
}

// exerciseSlices has the loops that are on by default, and a Service with a selector.
func exerciseSlices(t *testing.T, in place) func() error {
	startSlices(t, in)
	return servedPod(t, in)
}

// exerciseMirroring does what exerciseSlices does, and mirrors Endpoints.
func exerciseMirroring(t *testing.T, in place) func() error {
	startSlices(t, in, slicesvc.MirrorLoopName)
	serve, mirror := servedPod(t, in), mirroredEndpoints(t, in.kube)
	return func() error { return errors.Join(serve(), mirror()) }
}

// servedPod has a pod become ready and not ready, and adds superfluous slices beside the right one.
func servedPod(t *testing.T, in place) func() error {
	t.Helper()
	addNode(t, in.kube, "serving")
	labels := map[string]string{"app": "roles"}
	_, err := in.kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "roles",
			Annotations: map[string]string{corev1.AnnotationTopologyMode: "Auto"}, // of which an Event says that there are no zones
		},
		Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := in.kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "roles", Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "serving", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	round := 0
	return func() error {
		round++
		err := errors.Join(
			setReady(t.Context(), in.kube, pod, round%2 == 0),
			addNeedless(t.Context(), in.kube, fmt.Sprintf("roles-needless-%d", round)),
		)
		return errors.Join(err, soon(func() error { return oneSlice(t.Context(), in.kube, round%2 == 0) }))
	}
}

// mirroredEndpoints returns what gives a hand-made Endpoints object another address, and waits
// until its slice has that one.
func mirroredEndpoints(t *testing.T, kube kubernetes.Interface) func() error {
	t.Helper()
	const name = "mirrored"
	_, err := kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1"}}, Ports: []corev1.EndpointPort{{Port: 80}},
	}}}
	if endpoints, err = kube.CoreV1().Endpoints("default").Create(t.Context(), endpoints, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	round := 0
	return func() error {
		round++
		address := fmt.Sprintf("10.1.%d.%d", round/250, round%250+1)
		endpoints.ResourceVersion = "" // whatever it is now
		endpoints.Subsets[0].Addresses[0].IP = address
		if _, err := kube.CoreV1().Endpoints("default").Update(t.Context(), endpoints, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return soon(func() error {
			found, err := kube.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
			if err != nil {
				return err
			}
			if len(found.Items) != 1 || len(found.Items[0].Endpoints) != 1 || found.Items[0].Endpoints[0].Addresses[0] != address {
				return fmt.Errorf("of %d slices there should be one, with %s in it alone", len(found.Items), address)
			}
			return nil
		})
	}
}

// oneSlice says what is not right yet: one slice, with the one pod in it as it is.
func oneSlice(ctx context.Context, kube kubernetes.Interface, ready bool) error {
	found, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=roles"})
	if err != nil {
		return err
	}
	if len(found.Items) != 1 || len(found.Items[0].Endpoints) != 1 || *found.Items[0].Endpoints[0].Conditions.Ready != ready {
		return fmt.Errorf("of %d slices there should be one, with the pod in it, ready: %v", len(found.Items), ready)
	}
	return nil
}

func setReady(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	next := pod.DeepCopy()
	next.ResourceVersion = "" // whatever it is now
	next.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.244.0.7", PodIPs: []corev1.PodIP{{IP: "10.244.0.7"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
	}
	_, err := kube.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func addNeedless(ctx context.Context, kube kubernetes.Interface, name string) error {
	_, err := kube.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: "roles", discoveryv1.LabelManagedBy: slicesvc.UpstreamManagedBy,
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}, metav1.CreateOptions{})
	return err
}
