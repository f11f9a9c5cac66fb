package slicesvc_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	trivetmeta "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/api"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func nodeA() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}} }

// storedSlices returns the slices of the fake cluster.
func storedSlices(t *testing.T, deps slicesvc.Deps) []discoveryv1.EndpointSlice {
	t.Helper()
	list, err := clientsetOf(deps).DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// refuseWrites makes each write of a slice fail with what refuse returns, unless that is nil. verb
// is "create", "update" or "delete".
func refuseWrites(deps slicesvc.Deps, refuse func(verb string, slice *discoveryv1.EndpointSlice) error) {
	clientsetOf(deps).(*fake.Clientset).PrependReactor("*", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		var slice *discoveryv1.EndpointSlice
		if written, ok := action.(clienttesting.CreateAction); ok { // an UpdateAction is one, too
			slice, _ = written.GetObject().(*discoveryv1.EndpointSlice)
		}
		if !slices.Contains([]string{"create", "update", "delete"}, action.GetVerb()) {
			return false, nil, nil
		}
		err := refuse(action.GetVerb(), slice)
		return err != nil, nil, err
	})
}

func TestReconcileServiceSlices_WritesTheSlices(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, nodeA(), slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	request := &slicev1.ReconcileServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"}
	testkit.Eventually(t, 30*time.Second, func() error {
		answer, err := client.ReconcileServiceSlices(t.Context(), request)
		for _, change := range answer.GetPlan().GetChanges() {
			if change.Outcome != trivetmeta.Change_OUTCOME_APPLIED || change.ApplyTime == nil || change.Error != "" {
				t.Errorf("change is %v, want that it was applied", change)
			}
		}
		return err
	})
	again, err := client.ReconcileServiceSlices(t.Context(), request)
	if err != nil || len(again.Plan.Changes) != 0 || again.Plan.Etag == "" || again.Sources[0].Epoch == 0 {
		t.Errorf("a second call returns %v (%v), want no change", again, err)
	}
	if stored := storedSlices(t, deps); len(stored) != 1 {
		t.Errorf("%d slices, want 1", len(stored))
	}
}

func TestReconcileServiceSlices_StandbyOnlyValidates(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, nodeA(),
		slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Service("manual", func(service *corev1.Service) { service.Spec.Selector = nil }),
	)
	candidateOf(deps).Lose()
	_, client, _ := run(t, deps)
	ready(t, deps)
	reconcile := func(request *slicev1.ReconcileServiceSlicesRequest) (*slicev1.ReconcileServiceSlicesResponse, error) {
		request.Name = "namespaces/shop/serviceslices/" + request.Name
		return client.ReconcileServiceSlices(t.Context(), request)
	}
	planned, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
	if err != nil {
		t.Fatal(err)
	}

	answer, err := reconcile(&slicev1.ReconcileServiceSlicesRequest{Name: "web", ValidateOnly: true, Etag: planned.Plan.Etag})
	if err != nil || len(answer.Plan.Changes) != 1 || answer.Plan.Changes[0].Outcome != trivetmeta.Change_OUTCOME_PLANNED || answer.Plan.Etag != planned.Plan.Etag {
		t.Errorf("answer is %v (%v), want the planned creation", answer, err)
	}
	for name, c := range map[string]struct {
		request *slicev1.ReconcileServiceSlicesRequest
		code    codes.Code
		reason  rpcerror.Reason
	}{
		"no known leader":               {&slicev1.ReconcileServiceSlicesRequest{Name: "web"}, codes.Unavailable, rpcerror.NoLeaderReason},
		"not managed":                   {&slicev1.ReconcileServiceSlicesRequest{Name: "manual"}, codes.FailedPrecondition, api.ServiceUnmanagedReason},
		"not managed, validate only":    {&slicev1.ReconcileServiceSlicesRequest{Name: "manual", ValidateOnly: true}, codes.FailedPrecondition, api.ServiceUnmanagedReason},
		"does not exist":                {&slicev1.ReconcileServiceSlicesRequest{Name: "none"}, codes.NotFound, api.ServiceNotFoundReason},
		"does not exist, validate only": {&slicev1.ReconcileServiceSlicesRequest{Name: "none", ValidateOnly: true}, codes.NotFound, api.ServiceNotFoundReason},
		"another plan, validate only":   {&slicev1.ReconcileServiceSlicesRequest{Name: "web", ValidateOnly: true, Etag: "other"}, codes.Aborted, rpcerror.ETagMismatchReason},
	} {
		_, err := reconcile(c.request)
		if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.reason {
			t.Errorf("%s: error is %v, want %s %s", name, err, c.code, c.reason)
		}
	}
	if stored := storedSlices(t, deps); len(stored) != 0 {
		t.Errorf("a standby wrote %d slices", len(stored))
	}
}

// Two slices change. One write fails: the plan of the answer or of the error says which.
func TestReconcileServiceSlices_ShowsPartialSuccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse  error
		code    codes.Code
		reason  rpcerror.Reason
		failure string
	}{
		"denied":   {apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "web", errors.New("not today")), codes.OK, "", "not today"},
		"conflict": {apierrors.NewConflict(discoveryv1.Resource("endpointslices"), "web", errors.New("changed")), codes.Aborted, rpcerror.ConflictReason, "changed"},
		"overload": {apierrors.NewTooManyRequests("later", 1), codes.Unavailable, rpcerror.APIServerUnreachableReason, "later"},
		"broken":   {apierrors.NewInternalError(errors.New("no etcd")), codes.Unavailable, rpcerror.APIServerUnreachableReason, "no etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := corev1.IPFamilyPolicyRequireDualStack
			deps := fakeDeps(t, nodeA(),
				slicetest.Service("web", func(service *corev1.Service) {
					service.Spec.IPFamilyPolicy = &policy
					service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
				}),
				slicetest.Pod("web-0", "10.1.0.1", func(pod *corev1.Pod) {
					pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: "fd00::1"})
				}),
			)
			refuseWrites(deps, func(_ string, slice *discoveryv1.EndpointSlice) error {
				if slice != nil && slice.AddressType == discoveryv1.AddressTypeIPv6 {
					return c.refuse
				}
				return nil
			})
			candidateOf(deps).Lose()
			_, client, _ := run(t, deps)
			ready(t, deps)
			candidateOf(deps).Regain()
			var plan *trivetmeta.Plan
			testkit.Eventually(t, 30*time.Second, func() error {
				answer, err := client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
				if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.reason {
					return fmt.Errorf("error is %w, want %s %s", err, c.code, c.reason)
				}
				plan = answer.GetPlan()
				for _, detail := range status.Convert(err).Details() {
					if of, ok := detail.(*trivetmeta.Plan); ok {
						plan = of
					}
				}
				if len(plan.GetChanges()) == 0 {
					return errors.New("no plan")
				}
				return nil
			})
			failed := 0
			for _, change := range plan.Changes {
				switch change.Outcome {
				case trivetmeta.Change_OUTCOME_FAILED:
					failed++
					if !strings.Contains(change.Error, c.failure) || change.ApplyTime != nil {
						t.Errorf("change is %v, want the error %q", change, c.failure)
					}
				case trivetmeta.Change_OUTCOME_APPLIED:
					if change.ApplyTime == nil || change.Error != "" {
						t.Errorf("change is %v, want the time", change)
					}
				default:
					t.Errorf("change is %v, want that it was tried", change)
				}
			}
			if failed != 1 {
				t.Errorf("%d changes failed, want one: %v", failed, plan.Changes)
			}
		})
	}
}

// The etag binds a reconcile to the plan that was read. Another plan writes nothing.
func TestReconcileServiceSlices_ComparesTheEtag(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, nodeA(), slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"))
	refuseWrites(deps, func(string, *discoveryv1.EndpointSlice) error { // so that the change stays planned
		return apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "web", errors.New("not today"))
	})
	_, client, _ := run(t, deps)
	ready(t, deps)
	reconcile := func(etag string) (*slicev1.ReconcileServiceSlicesResponse, error) {
		return client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web", Etag: etag})
	}
	plan, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
	if err != nil || len(plan.Plan.Changes) != 1 {
		t.Fatalf("plan is %v (%v), want one creation", plan, err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if _, err := reconcile("other"); rpcerror.ReasonOf(err) != rpcerror.ETagMismatchReason || status.Code(err) != codes.Aborted {
			return fmt.Errorf("another etag gives %w, want %s", err, rpcerror.ETagMismatchReason)
		}
		return nil
	})
	answer, err := reconcile(plan.Plan.Etag)
	if err != nil || len(answer.Plan.Changes) != 1 || answer.Plan.Changes[0].Outcome != trivetmeta.Change_OUTCOME_FAILED || answer.Plan.Etag != plan.Plan.Etag {
		t.Errorf("the etag of the plan gives %v (%v), want that its change is tried", answer, err)
	}
}

// A plan may be read from one replica and applied by another.
func TestPlanServiceSlices_HasTheSameEtagOnEveryReplica(t *testing.T) {
	t.Parallel()
	service := slicetest.Service("web", func(service *corev1.Service) { service.Labels = map[string]string{"a": "1", "b": "2", "c": "3"} })
	objects := []runtime.Object{nodeA(), service}
	for i := range 250 { // three new slices
		objects = append(objects, slicetest.Pod(fmt.Sprint("web-", i), slicetest.Address(i)))
	}
	var plans []*trivetmeta.Plan
	for range 3 {
		deps := fakeDeps(t, objects...)
		candidateOf(deps).Lose()
		_, client, _ := run(t, deps)
		ready(t, deps)
		answer, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, answer.Plan)
	}
	for _, other := range plans[1:] {
		if diff := gocmp.Diff(plans[0], other, protocmp.Transform()); diff != "" || len(other.Changes) != 3 {
			t.Errorf("another replica plans %d changes; the plans differ:\n%s", len(other.Changes), diff)
		}
	}
}

// A plan shows each field that an update changes, by names that people know.
func TestPlanServiceSlices_ShowsFields(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, nodeA(), slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"), slicetest.Pod("web-1", "10.1.0.2"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	testkit.Eventually(t, 30*time.Second, func() error {
		if stored := storedSlices(t, deps); len(stored) != 1 || len(stored[0].Endpoints) != 2 {
			return errors.New("no slice yet")
		}
		return nil
	})
	candidateOf(deps).Lose()
	pods := clientsetOf(deps).CoreV1().Pods("shop")
	_, err := pods.Update(t.Context(), slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready), metav1.UpdateOptions{})
	if err == nil {
		err = pods.Delete(t.Context(), "web-1", metav1.DeleteOptions{})
	}
	if err == nil {
		_, err = pods.Create(t.Context(), slicetest.Pod("web-2", "10.1.0.3"), metav1.CreateOptions{})
	}
	if err == nil {
		_, err = clientsetOf(deps).CoreV1().Services("shop").Update(t.Context(),
			slicetest.Service("web", func(service *corev1.Service) { service.Labels = map[string]string{"team": "shop"} }), metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`endpoints["10.1.0.1"].conditions.ready: true -> false`,
		`endpoints["10.1.0.1"].conditions.serving: true -> false`,
		`endpoints["10.1.0.2"]: gone`,
		`endpoints["10.1.0.3"]: new`,
		`metadata.labels["team"]:  -> "shop"`,
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		answer, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
		if err != nil {
			return err
		}
		if len(answer.Plan.Changes) != 1 {
			return fmt.Errorf("plan is %v, want one update", answer.Plan)
		}
		var got []string
		for _, field := range answer.Plan.Changes[0].FieldChanges {
			switch {
			case strings.HasPrefix(field.Before, "{") && field.After == "":
				got = append(got, field.Path+": gone")
			case strings.HasPrefix(field.After, "{") && field.Before == "":
				got = append(got, field.Path+": new")
			case !strings.Contains(field.Path, "last-change-trigger-time"):
				got = append(got, fmt.Sprintf("%s: %s -> %s", field.Path, field.Before, field.After))
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			return fmt.Errorf("field changes (-want +got):\n%s", diff)
		}
		return nil
	})
}
