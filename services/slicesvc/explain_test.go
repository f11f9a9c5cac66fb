package slicesvc_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/api"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestExplainEndpoint_IncludedAndExcludedPod(t *testing.T) {
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("web"),
		slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Pod("api-0", "10.1.0.2", func(pod *corev1.Pod) { pod.Labels["app"] = "api" }),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	explain := func(pod string) *slicev1.ExplainEndpointResponse {
		t.Helper()
		answer, err := client.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: "namespaces/shop/services/web", Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if answer := explain("web-0"); !answer.Included || !answer.Settled {
			return errors.New("web-0 is not in a slice yet")
		}
		return nil
	})

	included, excluded := explain("web-0"), explain("api-0")

	if included.FirstBroken != -1 {
		t.Errorf("web-0: first broken is %d, want none: %v", included.FirstBroken, included.Evidence)
	}
	if excluded.Included || !excluded.Settled || excluded.FirstBroken != 1 || excluded.Evidence[1].Code != "SELECTOR" {
		t.Errorf("api-0 is %v, want that its selector link is broken", excluded)
	}
	var verdicts []string
	for _, link := range excluded.Evidence {
		if link.ReplicaId != "slicesvc-1" || link.ObserveTime == nil {
			t.Errorf("link %v has no replica or no time", link)
		}
		verdicts = append(verdicts, link.Code+" "+link.Verdict.String())
	}
	want := []string{
		"SERVICE VERDICT_GOOD", "SELECTOR VERDICT_BROKEN", "PHASE VERDICT_GOOD", "ADDRESS VERDICT_GOOD", "NODE VERDICT_GOOD",
		"READINESS VERDICT_GOOD", "TERMINATION VERDICT_GOOD", "PORTS VERDICT_GOOD", "SLICE VERDICT_ABSENT", "HINTS VERDICT_ABSENT",
	}
	if diff := gocmp.Diff(want, verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if object := included.Evidence[8].Object; object.GetKind() != "EndpointSlice" || object.GetName() == "" {
		t.Errorf("the object of the slice link is %v", object)
	}
}

func TestExplainEndpoint_NotFound(t *testing.T) {
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	for name, c := range map[string]struct {
		service, pod string
		code         codes.Code
		reason       rpcerror.Reason
	}{
		"no pod":     {service: "web", pod: "web-0", code: codes.NotFound, reason: api.PodNotFoundReason},
		"no service": {service: "none", pod: "web-0", code: codes.NotFound, reason: api.ServiceNotFoundReason},
		"no name":    {service: "web", pod: "", code: codes.InvalidArgument, reason: rpcerror.ValidationFailedReason},
		"a path":     {service: "web", pod: "../web", code: codes.InvalidArgument, reason: rpcerror.ValidationFailedReason},
	} {
		_, err := client.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: "namespaces/shop/services/" + c.service, Pod: c.pod})
		if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.reason {
			t.Errorf("%s: error is %v, want %s %s", name, err, c.code, c.reason)
		}
	}
}

// A client weighs a NOT_FOUND by the epoch of the replica that answers it.
func TestRPCs_NotFoundHasTheEpoch(t *testing.T) {
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	const none = "namespaces/shop/services/none"
	for name, call := range map[string]func() error{
		"get": func() error {
			_, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: none})
			return err
		},
		"plan": func() error {
			_, err := client.PlanService(t.Context(), &slicev1.PlanServiceRequest{Name: none})
			return err
		},
		"explain": func() error {
			_, err := client.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: none, Pod: "web-0"})
			return err
		},
		"explain a pod": func() error {
			_, err := client.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: "namespaces/shop/services/web", Pod: "web-0"})
			return err
		},
		"reconcile": func() error {
			_, err := client.ReconcileService(t.Context(), &slicev1.ReconcileServiceRequest{Name: none, ValidateOnly: true})
			return err
		},
	} {
		testkit.Eventually(t, 30*time.Second, func() error {
			err := call()
			if epoch := rpcerror.MetadataOf(err, "epoch"); status.Code(err) != codes.NotFound || epoch == "" || epoch == "0" {
				return fmt.Errorf("%s: error %w of epoch %q, want NOT_FOUND with the epoch of the term", name, err, epoch)
			}
			return nil
		})
	}
}

func TestReconcileService_WritesTheSlices(t *testing.T) {
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	var answer *slicev1.ReconcileServiceResponse
	testkit.Eventually(t, 30*time.Second, func() (err error) {
		answer, err = client.ReconcileService(t.Context(), &slicev1.ReconcileServiceRequest{Name: "namespaces/shop/services/web"})
		return err
	})
	if !answer.Applied {
		t.Errorf("answer is %v, want Applied", answer)
	}
	again, err := client.ReconcileService(t.Context(), &slicev1.ReconcileServiceRequest{Name: "namespaces/shop/services/web"})
	if err != nil || !again.Applied || len(again.Changes) != 0 || again.Freshness.GetEpoch() == 0 {
		t.Errorf("a second call returns %v (%v), want no change", again, err)
	}
	slices, err := clientsetOf(deps).DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != 1 {
		t.Errorf("%d slices (%v), want 1", len(slices.Items), err)
	}
}

func TestReconcileService_StandbyOnlyValidates(t *testing.T) {
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Service("manual", func(service *corev1.Service) { service.Spec.Selector = nil }),
	)
	candidateOf(deps).Lose()
	_, client, _ := run(t, deps)
	ready(t, deps)
	reconcile := func(name string, validateOnly bool) (*slicev1.ReconcileServiceResponse, error) {
		return client.ReconcileService(t.Context(), &slicev1.ReconcileServiceRequest{Name: "namespaces/shop/services/" + name, ValidateOnly: validateOnly})
	}

	answer, err := reconcile("web", true)
	if err != nil || answer.Applied || len(answer.Changes) != 1 || answer.Changes[0].Verb != statusv1.Change_VERB_CREATE {
		t.Errorf("answer is %v (%v), want one creation that was not applied", answer, err)
	}
	for name, c := range map[string]struct {
		service      string
		validateOnly bool
		code         codes.Code
		reason       rpcerror.Reason
	}{
		"another replica holds the shard": {service: "web", code: codes.Unavailable, reason: rpcerror.NotLeaderReason},
		"not managed":                     {service: "manual", code: codes.FailedPrecondition, reason: api.ServiceUnmanagedReason},
		"not managed, validate only":      {service: "manual", validateOnly: true, code: codes.FailedPrecondition, reason: api.ServiceUnmanagedReason},
		"does not exist":                  {service: "none", code: codes.NotFound, reason: api.ServiceNotFoundReason},
		"does not exist, validate only":   {service: "none", validateOnly: true, code: codes.NotFound, reason: api.ServiceNotFoundReason},
	} {
		_, err := reconcile(c.service, c.validateOnly)
		if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.reason {
			t.Errorf("%s: error is %v, want %s %s", name, err, c.code, c.reason)
		}
	}
	slices, err := clientsetOf(deps).DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != 0 {
		t.Errorf("a standby wrote %d slices (%v)", len(slices.Items), err)
	}
}
