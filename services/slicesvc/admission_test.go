package slicesvc_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// writesOfSlices are the writes of slices in the namespace of the test.
func (f *fixture) writesOfSlices() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.namespace}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"discovery.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"endpointslices"}},
		}}},
	}
}

// refuseSlices makes kube-apiserver refuse slices of the namespace for which a CEL expression is
// false, such as the probe.
func (f *fixture) refuseSlices(expression, message string, probe *discoveryv1.EndpointSlice) {
	f.t.Helper()
	policies := f.clients.AdmissionregistrationV1()
	name, fail := f.namespace, admissionv1.Fail
	_, err := policies.ValidatingAdmissionPolicies().Create(f.ctx(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    &fail,
			MatchConstraints: f.writesOfSlices(),
			Validations:      []admissionv1.Validation{{Expression: expression, Message: message}},
		},
	}, metav1.CreateOptions{})
	f.must(err)
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(f.ctx(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	f.must(err)
	f.t.Cleanup(func() {
		ctx := context.Background()
		err := errors.Join(policies.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			policies.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}))
		if err != nil {
			f.t.Errorf("delete the policy: %v", err)
		}
	})
	testkit.Eventually(f.t, testTimeout, func() error {
		if _, err := f.dryRun(probe); err == nil {
			return errors.New("the policy is not in force")
		}
		return nil
	})
}

// dryRun returns a slice as kube-apiserver would create it.
func (f *fixture) dryRun(probe *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return f.clients.DiscoveryV1().EndpointSlices(f.namespace).Create(f.ctx(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// probeSlice returns a slice with these addresses.
func probeSlice(family discoveryv1.AddressType, addresses ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, AddressType: family}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return slice
}

// shortenSlices makes kube-apiserver keep only three endpoints of slices with four or five. The
// returned function ends that.
func (f *fixture) shortenSlices() (end func()) {
	f.t.Helper()
	return f.mutateSlices("size(object.endpoints) > 3", `size(object.endpoints) > 4 ?
		[JSONPatch{op: "remove", path: "/endpoints/4"}, JSONPatch{op: "remove", path: "/endpoints/3"}] :
		[JSONPatch{op: "remove", path: "/endpoints/3"}]`,
		func(created *discoveryv1.EndpointSlice) bool { return len(created.Endpoints) == 3 })
}

// mutateSlices makes kube-apiserver patch the slices of the namespace that meet a condition, such
// as one of four endpoints. patched tells whether that one was patched. The returned function ends
// that.
func (f *fixture) mutateSlices(condition, patch string, patched func(*discoveryv1.EndpointSlice) bool) (end func()) {
	f.t.Helper()
	policies := f.clients.AdmissionregistrationV1()
	name, fail := f.namespace, admissionv1.Fail
	_, err := policies.MutatingAdmissionPolicies().Create(f.ctx(), &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			FailurePolicy:      &fail,
			MatchConstraints:   f.writesOfSlices(),
			MatchConditions:    []admissionv1.MatchCondition{{Name: "some", Expression: condition}},
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{Expression: patch},
			}},
		},
	}, metav1.CreateOptions{})
	f.must(err)
	_, err = policies.MutatingAdmissionPolicyBindings().Create(f.ctx(), &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}, metav1.CreateOptions{})
	f.must(err)
	probe := probeSlice(discoveryv1.AddressTypeIPv4, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4")
	await := func(want bool) {
		testkit.Eventually(f.t, testTimeout, func() error {
			created, err := f.dryRun(probe)
			if err == nil && patched(created) != want {
				err = fmt.Errorf("the policy is in force: %t, want %t", !want, want)
			}
			return err
		})
	}
	await(true)
	ended := false
	remove := func(ctx context.Context) {
		if ended {
			return
		}
		ended = true
		err := errors.Join(policies.MutatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			policies.MutatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}))
		if err != nil {
			f.t.Errorf("delete the policy: %v", err)
		}
	}
	f.t.Cleanup(func() { remove(context.Background()) })
	return func() {
		f.t.Helper()
		remove(f.ctx())
		await(false)
	}
}

// lastError returns the last error of the syncs of Service web, and how often they failed.
func (f *fixture) lastError() (text string, failures int32) {
	f.t.Helper()
	service, err := f.serviceSlices()
	f.must(err)
	for _, sync := range service.GetSyncs() {
		text, failures = sync.GetLastError(), sync.GetFailureCount()
	}
	return text, failures
}

// shortened returns whether a slice has three endpoints and says that it was stored otherwise.
func shortened(slice *slicev1.SliceSummary) bool {
	return slice.GetEndpointCount() == 3 && strings.Contains(slice.GetLastError(), "stored otherwise")
}

func portOfPod(number int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: number}}
	}
}

// A policy refuses every IPv6 slice of a dual-stack Service for ever. Its IPv4 slices follow the
// Pods as if nothing were refused.
func TestCluster_ARefusedFamilyDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, testkit.OwnCluster(t, devcluster.Config{ServiceCIDR: "10.0.0.0/16,fd00:10::/112"}).RESTConfig())
	node := f.node("a", "zone-a")
	f.refuseSlices("object.addressType != 'IPv6'", "IPv6 is refused", probeSlice(discoveryv1.AddressTypeIPv6, "fd00:1::1"))
	dualStack := corev1.IPFamilyPolicyRequireDualStack
	f.service(func(service *corev1.Service) {
		service.Spec.IPFamilyPolicy = &dualStack
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		service.Spec.Ports[0].TargetPort = intstr.FromString("http")
	})
	const going = 8
	var old []string
	for i := range going {
		name := fmt.Sprintf("web-%d", i)
		f.pod(name, node, []string{fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprintf("fd00:1::%d", i+1)}, portOfPod(8080))
		old = append(old, fmt.Sprintf("%s 10.1.0.%d zone-a RS", name, i+1))
	}
	f.pod("web-8", node, []string{"10.1.0.9", "fd00:1::9"}, portOfPod(9090))
	slice8080 := "IPv4 http 8080/TCP: " + strings.Join(old, ", ")
	f.expect(slice8080, "IPv4 http 9090/TCP: web-8 10.1.0.9 zone-a RS")
	testkit.Eventually(t, testTimeout, func() error {
		if text, failures := f.lastError(); failures < 5 || !strings.Contains(text, "IPv6 is refused") {
			return fmt.Errorf("last error after %d failures is %q, want 5 refusals", failures, text)
		}
		return nil
	})

	var took []time.Duration
	for round := range 9 {
		change, state := unready, ""
		if round%2 == 1 {
			change, state = becomeReady, "RS"
		}
		began := time.Now()
		f.status("web-8", change)
		want := []string{slice8080, "IPv4 http 9090/TCP: web-8 10.1.0.9 zone-a " + state}
		for !slices.Equal(describe(f.slices()), want) {
			if time.Since(began) > testTimeout {
				t.Fatalf("slices are %q, want %q", describe(f.slices()), want)
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("flips took %v", took)
	if median := took[len(took)/2]; median > 500*time.Millisecond {
		t.Errorf("half of the flips took %v or more: they wait for the refused slice", median)
	}

	for i := range going {
		f.deleteAtOnce(fmt.Sprintf("web-%d", i))
	}
	f.expectPromptly("the last Pods of a set of ports go", "IPv4 http 9090/TCP: web-8 10.1.0.9 zone-a ")
	if text, _ := f.lastError(); !strings.Contains(text, "IPv6 is refused") {
		t.Errorf("last error is %q, want that IPv6 is refused", text)
	}
}

// A policy shortens slices. slicesvc sees what was stored: it deletes no slice whose endpoints are
// missing in the shortened one, says which addresses are missing, and does not write without end.
func TestCluster_AChangedWriteIsNotBelieved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	var all []string
	for i := range 5 {
		name := fmt.Sprintf("web-%d", i)
		f.pod(name, node, []string{fmt.Sprintf("10.1.0.%d", i+1)})
		all = append(all, fmt.Sprintf("%s 10.1.0.%d zone-a RS", name, i+1))
	}
	slice := func(endpoints ...string) string { return "IPv4 http 8080/TCP: " + strings.Join(endpoints, ", ") }
	f.expect(slice(all...))

	// A slice that lost its owner is replaced. The new slice is shortened, so the old one stays.
	f.candidate.Lose() // the policy is to change no write of the test
	old := f.slices()[0]
	_, err := f.patch(f.ctx(), &old, `{"metadata":{"ownerReferences":null}}`)
	f.must(err)
	end := f.shortenSlices()
	f.candidate.Regain()
	testkit.Eventually(t, testTimeout, func() error {
		if text, failures := f.lastError(); failures < 3 || !strings.Contains(text, "2 of its addresses are missing, the first one is 10.1.0.4") {
			return fmt.Errorf("last error after %d failures is %q, want the missing addresses", failures, text)
		}
		return nil
	})
	f.expect(slice(all[:3]...), slice(all...))
	service, err := f.serviceSlices()
	f.must(err)
	if !slices.ContainsFunc(service.GetSlices(), shortened) {
		t.Errorf("slices are %v, want one with 3 endpoints and the error", service.GetSlices())
	}
	testkit.Eventually(t, testTimeout, func() error {
		events, err := f.clients.CoreV1().Events(f.namespace).List(f.ctx(), metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(events.Items, func(event corev1.Event) bool {
			return event.Reason == "FailedToUpdateEndpointSlices" && strings.Contains(event.Message, "10.1.0.4")
		}) {
			err = errors.New("no Event names the missing address")
		}
		return err
	})
	_, before := f.lastError()
	time.Sleep(3 * time.Second)
	if _, after := f.lastError(); after > before+3 {
		t.Errorf("%d more writes in 3 s, want growing pauses", after-before)
	}

	// Another change of the shortened slice does not wait.
	f.status("web-0", unready)
	f.expect(slice("web-0 10.1.0.1 zone-a ", all[1], all[2]), slice(all...))
	end()
	f.status("web-0", becomeReady)
	f.expect(slice(all...))
	if left := f.slices()[0]; left.Name == old.Name || len(left.OwnerReferences) != 1 {
		t.Errorf("the slice is %+v, want the new one", left.ObjectMeta)
	}
	testkit.Eventually(t, testTimeout, func() error {
		if text, failures := f.lastError(); failures != 0 {
			return fmt.Errorf("%d failures in the end: %s", failures, text)
		}
		return nil
	})
}

// allSlices lists the slices of the namespace, whatever their labels are.
func (f *fixture) allSlices() []discoveryv1.EndpointSlice {
	f.t.Helper()
	list, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{})
	f.must(err)
	return list.Items
}

// A policy gives slices another managed-by label or another Service. slicesvc does not find such a
// slice again: it deletes the one that it has just created, says why, and tries it again with
// growing pauses instead of creating one with each change of a Pod.
func TestCluster_ASliceWithOtherLabelsIsNotCreatedWithoutEnd(t *testing.T) {
	for name, label := range map[string]string{"managed-by": discoveryv1.LabelManagedBy, "service-name": discoveryv1.LabelServiceName} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			node := f.node("a", "zone-a")
			path := "/metadata/labels/" + strings.ReplaceAll(label, "/", "~1")
			end := f.mutateSlices("true", fmt.Sprintf(`has(object.metadata.labels) ?
				[JSONPatch{op: "replace", path: %q, value: "policy"}] :
				[JSONPatch{op: "add", path: "/metadata/labels", value: {%q: "policy"}}]`, path, label),
				func(created *discoveryv1.EndpointSlice) bool { return created.Labels[label] == "policy" })
			f.service()
			f.pod("web-0", node, []string{"10.1.0.1"})
			testkit.Eventually(t, testTimeout, func() error {
				if text, failures := f.lastError(); failures < 4 || !strings.Contains(text, label+` is "policy"`) {
					return fmt.Errorf("last error after %d failures is %q, want the label", failures, text)
				}
				return nil
			})
			_, before := f.lastError()
			most := 0
			began := time.Now()
			for i := range 20 {
				f.status("web-0", []func(*corev1.PodStatus){unready, becomeReady}[i%2])
				time.Sleep(100 * time.Millisecond)
				most = max(most, len(f.allSlices()))
			}
			_, after := f.lastError()
			if limit := int32(time.Since(began)/time.Second) + 2; after-before > limit || most > 1 {
				t.Errorf("%d more creations during 20 changes, want at most %d; up to %d slices at once, want one", after-before, limit, most)
			}
			testkit.Eventually(t, testTimeout, func() error {
				events, err := f.clients.CoreV1().Events(f.namespace).List(f.ctx(), metav1.ListOptions{})
				if err == nil && !slices.ContainsFunc(events.Items, func(event corev1.Event) bool {
					return event.Reason == "FailedToUpdateEndpointSlices" && strings.Contains(event.Message, label)
				}) {
					err = errors.New("no Event names the label")
				}
				return err
			})
			end()
			f.status("web-0", becomeReady)
			f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
			if got := len(f.allSlices()); got != 1 {
				t.Errorf("%d slices in the end, want one", got)
			}
		})
	}
}

// A policy denies one address. The slice to which its Pod would be added does not keep the
// endpoints of Pods that are gone or not ready.
func TestCluster_ADeniedEndpointKeepsNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	for i := range 3 {
		f.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.0.%d", i+1)})
	}
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS, web-2 10.1.0.3 zone-a RS")
	f.refuseSlices("!object.endpoints.exists(e, '10.1.0.99' in e.addresses)", "this address is denied", probeSlice(discoveryv1.AddressTypeIPv4, "10.1.0.99"))
	f.pod("web-9", node, []string{"10.1.0.99"})
	testkit.Eventually(t, testTimeout, func() error {
		if text, _ := f.lastError(); !strings.Contains(text, "this address is denied") {
			return fmt.Errorf("last error is %q, want the denial", text)
		}
		return nil
	})
	f.deleteAtOnce("web-0")
	f.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a RS, web-2 10.1.0.3 zone-a RS")
	f.status("web-1", unready)
	f.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a , web-2 10.1.0.3 zone-a RS")
	if text, _ := f.lastError(); !strings.Contains(text, "this address is denied") {
		t.Errorf("last error is %q, want the denial", text)
	}
	f.deleteAtOnce("web-9")
	f.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a , web-2 10.1.0.3 zone-a RS")
	testkit.Eventually(t, testTimeout, func() error {
		if text, failures := f.lastError(); failures != 0 {
			return fmt.Errorf("%d failures in the end: %s", failures, text)
		}
		return nil
	})
}

// An admission webhook answers 429 for the slices of one Service, and asks for a pause of ten
// seconds. Other Services do not wait.
func TestCluster_AThrottlingWebhookDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	var calls atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review admissionreviewv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{
			Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "too many slices",
			Details: &metav1.StatusDetails{RetryAfterSeconds: 10},
		}}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(server.Close)
	fail, none := admissionv1.Fail, admissionv1.SideEffectClassNone
	hooks := f.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(f.ctx(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "slices.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: f.writesOfSlices().NamespaceSelector,
			Rules:             []admissionv1.RuleWithOperations{f.writesOfSlices().ResourceRules[0].RuleWithOperations},
			MatchConditions:   []admissionv1.MatchCondition{{Name: "refused", Expression: "object.metadata.name.startsWith('refused-')"}},
		}},
	}, metav1.CreateOptions{})
	f.must(err)
	t.Cleanup(func() {
		if err := hooks.Delete(context.Background(), f.namespace, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete the webhook: %v", err)
		}
	})
	probe := probeSlice(discoveryv1.AddressTypeIPv4, "10.1.0.1")
	probe.Name = "refused-probe"
	testkit.Eventually(t, testTimeout, func() error {
		if _, err := f.dryRun(probe); err == nil || !strings.Contains(err.Error(), "too many slices") {
			return fmt.Errorf("the webhook is not in force: %w", err)
		}
		return nil
	})
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	before := calls.Load()
	const refused = 10 // more than there are workers
	for i := range refused {
		f.service(func(service *corev1.Service) { service.Name = fmt.Sprint("refused-", i) })
	}
	testkit.Eventually(t, testTimeout, func() error {
		if got := calls.Load() - before; got < 2*refused {
			return fmt.Errorf("the webhook was called %d times, want each slice twice", got)
		}
		return nil
	})
	for i := range 10 {
		state := []string{"", "RS"}[i%2]
		f.status("web-0", []func(*corev1.PodStatus){unready, becomeReady}[i%2])
		f.expectPromptly("a webhook throttles other Services", "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a "+state)
	}
}

// A full ResourceQuota refuses the new slice of a Service. Upstream's controller stops at this
// error before it updates the others. Here they follow the Pods, and the new slice comes when the
// quota allows it.
func TestCluster_AFullQuotaKeepsNoDeadEndpoints(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service(func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromString("http") })
	for i := range 2 {
		f.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.0.%d", i+1)}, portOfPod(8080))
	}
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")

	const counted corev1.ResourceName = "count/endpointslices.discovery.k8s.io"
	quotas := f.clients.CoreV1().ResourceQuotas(f.namespace)
	limit := func(slices string) {
		t.Helper()
		hard, used := corev1.ResourceList{counted: resource.MustParse(slices)}, corev1.ResourceList{counted: resource.MustParse("1")}
		quota, err := quotas.Get(f.ctx(), "slices", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			quota, err = quotas.Create(f.ctx(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "slices"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
		}
		f.must(err)
		quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: used} // no quota controller runs
		_, err = quotas.UpdateStatus(f.ctx(), quota, metav1.UpdateOptions{})
		f.must(err)
	}
	limit("1")
	testkit.Eventually(t, testTimeout, func() error { // the admission plugin has a cache
		if _, err := f.dryRun(probeSlice(discoveryv1.AddressTypeIPv4, "10.1.0.9")); err == nil || !strings.Contains(err.Error(), "exceeded quota") {
			return fmt.Errorf("the quota is not in force: %w", err)
		}
		return nil
	})
	f.pod("web-2", node, []string{"10.1.0.3"}, portOfPod(9090))
	testkit.Eventually(t, testTimeout, func() error {
		if text, failures := f.lastError(); failures < 4 || !strings.Contains(text, "exceeded quota") {
			return fmt.Errorf("last error after %d failures is %q, want the quota", failures, text)
		}
		return nil
	})
	f.status("web-0", unready)
	f.expectPromptly("a Pod is not ready", "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a RS")
	f.deleteAtOnce("web-1")
	f.expectPromptly("a Pod is gone", "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a ")
	limit("10")
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a ", "IPv4 http 9090/TCP: web-2 10.1.0.3 zone-a RS")
}
