package hostile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// hostileText has an escape of a terminal, a line break, HTML, a change of the writing direction, a
// control character of ISO 8859-1, and bytes that are not UTF-8.
const hostileText = "<img src=x onerror=\"document.title='owned'\">\x1b[31m\x1b]8;;https://evil.example\x07\r\n\u202e\u009b5m\xff\xfe"

// TestTenant_ObjectsOfOneNamespaceHoldUpNoOther creates one kind of hostile objects after the
// other. Each step checks the documented result of the objects, and the latency of another
// namespace while they exist.
func TestTenant_ObjectsOfOneNamespaceHoldUpNoOther(t *testing.T) {
	w := newWorld(t)
	t.Logf("without hostile objects the neighbour's worst latency is %v", w.neighbourFollows())
	for _, step := range []struct {
		name string
		run  func(*world)
	}{
		{"addresses that slices cannot have", specialAddresses},
		{"a Service with 1,000 ports, and names at their limits", thousandPorts},
		{"a Pod that many Services select flips", sharedPod},
		{"Pods that change their labels", labelChurn},
		{"hand-made EndpointSlices", handMadeSlices},
		{"Endpoints with 1,000 subsets", thousandSubsets},
		{"a policy that refuses slices", refusedSlices},
		{"Pods with odd statuses", oddStatuses},
		{"a Service of a megabyte", largeService},
		{"a namespace that never ends", endlessNamespace},
	} {
		t.Run(step.name, func(t *testing.T) {
			inner := *w
			inner.T = t
			began := time.Now()
			step.run(&inner)
			t.Logf("the neighbour's worst latency is %v; the step took %v", inner.neighbourFollows(), time.Since(began).Round(time.Millisecond))
			w.flips = inner.flips
		})
	}
	slices := "/v1/namespaces/" + w.tenant + "/serviceslices"
	routes := []string{"/v1/status", "/v1/decisions?pageSize=1000", slices + "?pageSize=1000", "/v1/findings", "/v1/baseline"}
	for _, service := range []string{"odd", "web", "subsets", "refused-0", "status", "large"} {
		routes = append(routes, slices+"/"+service)
	}
	for i := range oddTimes() {
		routes = append(routes, fmt.Sprintf("%s/status:explain?pod=status-%d", slices, i+4))
	}
	routes = append(routes, slices+"/status:explain?pod=status-2", slices+"/odd:explain?pod=odd-1", slices+"/subsets:explain?address=10.8.0.1")
	namespace := "--namespace=" + w.tenant
	w.checkOutput(routes, []string{"status"}, []string{"slices", namespace, "-o", "wide"}, []string{"events", "-o", "json"},
		[]string{"explain", "endpoint", namespace, "--service=status", "status-2"}, []string{"explain", "endpoint", namespace, "--service=status", "status-2", "-o", "yaml"},
		[]string{"explain", "endpoint", namespace, "--service=odd", "odd-1"})
}

// specialAddresses are addresses that a kubelet may report and that kube-apiserver refuses in
// slices.
func specialAddresses(w *world) {
	w.makeService(w.tenant, "odd", func(service *corev1.Service) {
		double := corev1.IPFamilyPolicyPreferDualStack
		service.Spec.IPFamilyPolicy = &double
	})
	for i, address := range []string{"10.1.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "fe80::1", "::"} {
		w.makePod(w.tenant, fmt.Sprint("odd-", i), nil, address)
	}
	w.makePod(w.tenant, "odd-8", nil, "10.7.0.1") // that of another namespace's Pod
	w.makePod(w.tenant, "odd-9", nil, "239.1.1.1")
	w.expectEndpoints(w.tenant, "odd", "10.1.0.1 true", "10.7.0.1 true", "239.1.1.1 true")
	w.setReady(w.tenant, "odd-0", false)
	w.expectEndpoints(w.tenant, "odd", "10.1.0.1 false", "10.7.0.1 true", "239.1.1.1 true")
}

func thousandPorts(w *world) {
	label := strings.Repeat("l", 63)
	w.makeService(w.tenant, "s"+strings.Repeat("-x", 31), func(service *corev1.Service) {
		service.Labels = map[string]string{strings.Repeat("p.", 126) + "p/" + label: label}
		service.Spec.Selector = map[string]string{"app": "ports"}
		service.Spec.Ports = nil
		for i := range 1000 {
			name := fmt.Sprintf("%s-%d", strings.Repeat("n", 58), i)
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1), TargetPort: intstr.FromString(fmt.Sprintf("port-%d", i%100))})
		}
	})
	for i := range 3 {
		w.makePod(w.tenant, fmt.Sprint("ports-", i), func(pod *corev1.Pod) {
			for j := range 100 {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{Name: fmt.Sprintf("port-%d", j), ContainerPort: int32(1000*(i+1) + j)})
			}
		}, fmt.Sprint("10.2.0.", i+1))
	}
	w.expectEndpoints(w.tenant, "s"+strings.Repeat("-x", 31), "10.2.0.1 true", "10.2.0.2 true", "10.2.0.3 true")
	list, err := w.kube.DiscoveryV1().EndpointSlices(w.tenant).List(w.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + "s" + strings.Repeat("-x", 31)})
	w.must(err)
	for _, slice := range list.Items {
		if len(list.Items) != 3 || len(slice.Ports) != 1000 || slice.Name == "" {
			w.Errorf("there are %d slices, %s with %d ports; want one with 1,000 for each Pod with other numbers", len(list.Items), slice.Name, len(slice.Ports))
		}
	}
}

// sharedPod is a Pod that many Services select: each of its changes is a write for each of them.
func sharedPod(w *world) {
	services := 30
	if *long {
		services = 1000
	}
	for i := range services {
		w.makeService(w.tenant, fmt.Sprint("shared-", i), func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "shared"} })
	}
	w.makePod(w.tenant, "shared-0", nil, "10.3.0.1")
	w.churn(func(ctx context.Context, round int) {
		status := corev1.ConditionTrue
		if round%2 == 1 {
			status = corev1.ConditionFalse
		}
		_, err := w.kube.CoreV1().Pods(w.tenant).Patch(ctx, "shared-0", types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"`+string(status)+`"}]}}`), metav1.PatchOptions{}, "status")
		w.report(ctx, err)
	})
	w.setReady(w.tenant, "shared-0", true)
	for _, i := range []int{0, services - 1} {
		w.expectEndpoints(w.tenant, fmt.Sprint("shared-", i), "10.3.0.1 true")
	}
}

func labelChurn(w *world) {
	pods := 30
	if *long {
		pods = 1000
	}
	w.makeService(w.tenant, "churn", func(service *corev1.Service) { service.Spec.ClusterIP = corev1.ClusterIPNone })
	for i := range pods {
		w.makePod(w.tenant, fmt.Sprint("churn-", i), nil, fmt.Sprintf("10.4.%d.%d", i/200, i%200+1))
	}
	w.churn(func(ctx context.Context, round int) {
		app := "churn"
		if round/pods%2 == 0 {
			app = "other"
		}
		_, err := w.kube.CoreV1().Pods(w.tenant).Patch(ctx, fmt.Sprint("churn-", round%pods), types.StrategicMergePatchType,
			[]byte(`{"metadata":{"labels":{"app":"`+app+`"}}}`), metav1.PatchOptions{})
		w.report(ctx, err)
	})
}

// churn changes an object 100 times a second, or as often as kube-apiserver lets it, while it
// measures the neighbour.
func (w *world) churn(change func(ctx context.Context, round int)) {
	w.Helper()
	ctx, stop := context.WithCancel(w.Context())
	var background sync.WaitGroup
	rounds := 0
	background.Go(func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			change(ctx, rounds)
			rounds++
			<-ticker.C
		}
	})
	began := time.Now()
	worst := w.neighbourFollows()
	if *long {
		for time.Since(began) < 20*time.Second {
			worst = max(worst, w.neighbourFollows())
		}
	}
	stop()
	background.Wait()
	w.Logf("during %d changes in %v the neighbour's worst latency is %v", rounds, time.Since(began).Round(time.Millisecond), worst)
}

// report tells an error that is not the end of ctx.
func (w *world) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		w.Error(err)
	}
}

// handMadeSlices have the labels of slicesvc, and content that it does not write.
func handMadeSlices(w *world) {
	service := w.makeService(w.tenant, "web", nil)
	w.makePod(w.tenant, "web-0", nil, "10.5.0.1")
	w.expectEndpoints(w.tenant, "web", "10.5.0.1 true")
	foreign, err := w.kube.CoreV1().Services(w.neighbour).Get(w.Context(), "web", metav1.GetOptions{})
	w.must(err)
	slice := func(name, of string, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				discoveryv1.LabelServiceName: of, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			}, Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: hostileText}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.7.0.1"}, TargetRef: &corev1.ObjectReference{
				Kind: hostileText, Namespace: w.neighbour, Name: hostileText, UID: types.UID(hostileText), FieldPath: hostileText,
			}}},
		}
		change(slice)
		return slice
	}
	made := []*discoveryv1.EndpointSlice{
		slice("hand-plain", "web", func(*discoveryv1.EndpointSlice) {}),
		slice("hand-owner", "web", func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: foreign.UID, Controller: new(true)}}
		}),
		slice("hand-fqdn", "web", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = "FQDN", []string{"evil.example"}
		}),
		slice("hand-ipv6", "web", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeIPv6, []string{"fd00::1"}
		}),
		slice("hand-finalizer", "web", func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.org/never"} }),
		slice("hand-other-manager", "web", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "example.org" }),
		slice("hand-no-service", "ghost", func(*discoveryv1.EndpointSlice) {}),
		slice("hand-full", "web", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = nil
			for i := range 1000 {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.6.%d.%d", i/250, i%250+1)}})
			}
		}),
	}
	for _, one := range made {
		_, err := w.kube.DiscoveryV1().EndpointSlices(w.tenant).Create(w.Context(), one, metav1.CreateOptions{})
		w.must(err)
	}
	w.whole.Cleanup(func() {
		_, err := w.kube.DiscoveryV1().EndpointSlices(w.tenant).Patch(context.Background(), "hand-finalizer", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			w.Error(err)
		}
	})
	// The slices with the label of slicesvc and of its Service become its own. The others stay.
	testkit.Eventually(w, timeout, func() error {
		list, err := w.kube.DiscoveryV1().EndpointSlices(w.tenant).List(w.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + " in (web,ghost)"})
		if err != nil {
			return err
		}
		endpoints := 0
		for _, slice := range list.Items {
			switch {
			case slice.Name == "hand-other-manager", slice.Name == "hand-no-service":
				if len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "10.7.0.1" {
					return fmt.Errorf("%s, which slicesvc does not manage, has been changed: %v", slice.Name, slice.Endpoints)
				}
			case slice.DeletionTimestamp != nil: // its finalizer keeps it
			default:
				for _, endpoint := range slice.Endpoints {
					if endpoint.Addresses[0] != "10.5.0.1" {
						return fmt.Errorf("%s has the foreign endpoint %v", slice.Name, endpoint.Addresses)
					}
					endpoints++
				}
				if owner := metav1.GetControllerOf(&slice); owner == nil || owner.UID != service.UID {
					return fmt.Errorf("%s has the owner %v, want the Service", slice.Name, owner)
				}
			}
		}
		if endpoints != 1 {
			return fmt.Errorf("the Service has %d endpoints in %d slices, want the one of its Pod", endpoints, len(list.Items))
		}
		return nil
	})
}

// thousandSubsets are those of Endpoints without a selector, with targets that are not valid text.
func thousandSubsets(w *world) {
	w.makeService(w.tenant, "subsets", func(service *corev1.Service) { service.Spec.Selector = nil })
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "subsets", Annotations: map[string]string{"example.org/note": hostileText}}}
	for i := range 1000 {
		endpoints.Subsets = append(endpoints.Subsets, corev1.EndpointSubset{
			Addresses: []corev1.EndpointAddress{{IP: fmt.Sprintf("10.8.%d.%d", i/250, i%250+1), TargetRef: &corev1.ObjectReference{
				Kind: hostileText, Namespace: w.neighbour, Name: hostileText, UID: types.UID(hostileText),
			}}},
			Ports: []corev1.EndpointPort{{Name: "p", Port: int32(i%10 + 1)}},
		})
	}
	_, err := w.kube.CoreV1().Endpoints(w.tenant).Create(w.Context(), endpoints, metav1.CreateOptions{})
	w.must(err)
	testkit.Eventually(w, timeout, func() error {
		got, err := w.endpoints(w.tenant, "subsets")
		if err == nil && len(got) != 1000 {
			err = fmt.Errorf("there are %d mirrored endpoints, want 1,000", len(got))
		}
		return err
	})
	for _, address := range []string{"127.0.0.1", "169.254.169.254", "::1", "224.0.0.1"} {
		endpoints.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address}}, Ports: []corev1.EndpointPort{{Port: 1}}}}
		if _, err := w.kube.CoreV1().Endpoints(w.tenant).Update(w.Context(), endpoints, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			w.Errorf("Endpoints with %s: %v, want them refused, or slicesvc must leave the address out", address, err)
		}
	}
}

// refusedSlices is a policy that refuses all slices of one namespace, as a webhook of a tenant's
// operator may.
func refusedSlices(w *world) {
	name := w.tenant + "-refuse"
	policies, bindings := w.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(), w.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(w.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"discovery.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"endpointslices"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "!object.metadata.name.startsWith('refused')", Message: strings.ToValidUTF8(strings.NewReplacer("\r\n", " ", "\x1b", "", "\x07", "").Replace(hostileText), "")}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	defer func() { w.must(policies.Delete(context.Background(), name, metav1.DeleteOptions{})) }()
	_, err = bindings.Create(w.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.tenant}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	defer func() { w.must(bindings.Delete(context.Background(), name, metav1.DeleteOptions{})) }()
	probe := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, AddressType: discoveryv1.AddressTypeIPv4}
	testkit.Eventually(w, timeout, func() error { // a policy takes effect late
		_, err := w.kube.DiscoveryV1().EndpointSlices(w.tenant).Create(w.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("the policy refuses no slice")
		}
		return nil
	})
	services := 20
	for i := range services {
		w.makeService(w.tenant, fmt.Sprint("refused-", i), nil)
	}
	w.makePod(w.tenant, "refused-0", nil, "10.9.0.1")
	testkit.Eventually(w, timeout, func() error {
		if !strings.Contains(w.log.String(), "refused-0 error=") {
			return errors.New("no refusal is logged")
		}
		return nil
	})
	worst := w.neighbourFollows()
	w.Logf("beside %d Services whose slices are refused, the neighbour's worst latency is %v", services, worst)
}

// oddStatuses are statuses of Pods that kube-apiserver admits.
func oddStatuses(w *world) {
	w.makeService(w.tenant, "status", nil)
	conditions := 1000
	if *long {
		conditions = 8000
	}
	w.makePod(w.tenant, "status-0", func(pod *corev1.Pod) {
		for i := range conditions {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprintf("example.org/c%d", i)), Status: corev1.ConditionTrue, Message: hostileText})
		}
	}, "10.10.0.1")
	w.makePod(w.tenant, "status-1", nil) // no address
	w.makePod(w.tenant, "status-2", func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodPhase(hostileText)
		pod.Status.Conditions[0].Message, pod.Status.Conditions[0].Reason = hostileText, hostileText
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
	}, "10.10.0.3")
	w.makePod(w.tenant, "status-3", func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse})
	}, "10.10.0.4") // two conditions Ready: the first counts
	want := []string{"10.10.0.1 true", "10.10.0.3 true", "10.10.0.4 true"}
	for i, at := range oddTimes() {
		address := fmt.Sprint("10.10.1.", i)
		w.makePod(w.tenant, fmt.Sprint("status-", i+4), func(pod *corev1.Pod) { pod.Status.Conditions[0].LastTransitionTime = at }, address)
		want = append(want, address+" true")
	}
	w.expectEndpoints(w.tenant, "status", want...)
}

// largeService has labels of a megabyte, which each of its slices must repeat.
func largeService(w *world) {
	w.makeService(w.tenant, "large", func(service *corev1.Service) {
		service.Labels = map[string]string{}
		labels := 1500
		if *long {
			labels = 6000
		}
		for i := range labels {
			service.Labels[fmt.Sprintf("%s-%d", strings.Repeat("k", 57), i)] = strings.Repeat("v", 63)
		}
		service.Annotations = map[string]string{"example.org/note": strings.Repeat("\x1b", 1<<17)}
	})
	for i := range 3 {
		w.makePod(w.tenant, fmt.Sprint("large-", i), nil, fmt.Sprint("10.11.0.", i+1))
	}
	w.expectEndpoints(w.tenant, "large", "10.11.0.1 true", "10.11.0.2 true", "10.11.0.3 true")
}

// endlessNamespace is being deleted for ever, because an object in it has a finalizer.
func endlessNamespace(w *world) {
	namespace := testkit.Namespace(w, w.kube)
	w.makeService(namespace, "web", nil)
	w.makePod(namespace, "web-0", nil, "10.12.0.1")
	w.expectEndpoints(namespace, "web", "10.12.0.1 true")
	w.must(w.kube.CoreV1().Namespaces().Delete(w.Context(), namespace, metav1.DeleteOptions{}))
	w.setReady(namespace, "web-0", false)
	w.expectEndpoints(namespace, "web", "10.12.0.1 false")
}
