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
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/api"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestExplainEndpoint_IncludedAndExcludedPod(t *testing.T) {
	t.Parallel()
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
		answer, err := client.ExplainEndpoint(t.Context(), podRequest("web", pod))
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

	if included.BrokenIndex != nil {
		t.Errorf("web-0: broken_index is %d, want none: %v", *included.BrokenIndex, included.Evidence)
	}
	if excluded.Included || !excluded.Settled || excluded.GetBrokenIndex() != 1 || excluded.Evidence[1].Code != "SELECTOR" {
		t.Errorf("api-0 is %v, want that its selector link failed", excluded)
	}
	checkSource(t, excluded.Sources, 27)
	var results []string
	for _, link := range excluded.Evidence {
		if link.ReplicaId != "slicesvc-1" || link.ObserveTime == nil || link.Message == "" {
			t.Errorf("link %v has no replica, time or message", link)
		}
		results = append(results, link.Code+" "+link.Result.String())
	}
	want := []string{
		"SERVICE RESULT_OK", "SELECTOR RESULT_FAILED", "PHASE RESULT_OK", "ADDRESS RESULT_OK", "NODE RESULT_OK",
		"READINESS RESULT_OK", "TERMINATION RESULT_OK", "PORTS RESULT_OK", "SLICE RESULT_NOT_APPLICABLE", "HINTS RESULT_NOT_APPLICABLE",
	}
	if diff := gocmp.Diff(want, results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if object := included.Evidence[8].Object; object.GetKind() != "EndpointSlice" || object.GetName() == "" {
		t.Errorf("the object of the slice link is %v", object)
	}
}

func podRequest(service, pod string) *slicev1.ExplainEndpointRequest {
	return &slicev1.ExplainEndpointRequest{
		Name:     "namespaces/shop/serviceslices/" + service,
		Endpoint: &slicev1.ExplainEndpointRequest_Pod{Pod: pod},
	}
}

func addressRequest(service, address string) *slicev1.ExplainEndpointRequest {
	return &slicev1.ExplainEndpointRequest{
		Name:     "namespaces/shop/serviceslices/" + service,
		Endpoint: &slicev1.ExplainEndpointRequest_Address{Address: address},
	}
}

// An address means the Pod that has it, the selected one of several. The evidence says if no Pod
// has it.
func TestExplainEndpoint_Address(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("web"),
		slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Pod("a-ended", "10.1.0.1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }),
		slicetest.Pod("a-host", "10.1.0.1", func(pod *corev1.Pod) { pod.Labels["app"] = "api" }),
		slicetest.Pod("api-0", "10.1.0.2", func(pod *corev1.Pod) { pod.Labels["app"] = "api" }),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	for name, c := range map[string]struct {
		address, pod string
		included     bool
		failed       string
	}{
		"a selected pod":         {address: "10.1.0.1", pod: "web-0", included: true},
		"an IPv4 in IPv6":        {address: "::ffff:10.1.0.1", pod: "web-0", included: true},
		"a pod not selected":     {address: "10.1.0.2", pod: "api-0", failed: "SELECTOR"},
		"no pod":                 {address: "10.1.0.9", failed: "ADDRESS"},
		"no pod, another family": {address: "fd00::9", failed: "ADDRESS"},
	} {
		testkit.Eventually(t, 30*time.Second, func() error {
			answer, err := client.ExplainEndpoint(t.Context(), addressRequest("web", c.address))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			failed := ""
			if answer.BrokenIndex != nil {
				failed = answer.Evidence[*answer.BrokenIndex].Code
			}
			pod := answer.Evidence[1].Object.GetName()
			if answer.Included != c.included || failed != c.failed || pod != c.pod {
				return fmt.Errorf("%s: included %t, failed %q, pod %q, want %+v", name, answer.Included, failed, pod, c)
			}
			return nil
		})
	}
}

func TestExplainEndpoint_Errors(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	for name, c := range map[string]struct {
		request *slicev1.ExplainEndpointRequest
		code    codes.Code
		reason  rpcerror.Reason
	}{
		"no pod":                    {podRequest("web", "web-0"), codes.NotFound, api.PodNotFoundReason},
		"no service":                {podRequest("none", "web-0"), codes.NotFound, api.ServiceNotFoundReason},
		"no service, address":       {addressRequest("none", "10.1.0.1"), codes.NotFound, api.ServiceNotFoundReason},
		"no name":                   {podRequest("web", ""), codes.InvalidArgument, rpcerror.ValidationFailedReason},
		"a path":                    {podRequest("web", "../web"), codes.InvalidArgument, rpcerror.ValidationFailedReason},
		"no endpoint":               {&slicev1.ExplainEndpointRequest{Name: "namespaces/shop/serviceslices/web"}, codes.InvalidArgument, rpcerror.ValidationFailedReason},
		"an address that is a name": {addressRequest("web", "web-0"), codes.InvalidArgument, rpcerror.ValidationFailedReason},
	} {
		_, err := client.ExplainEndpoint(t.Context(), c.request)
		if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.reason {
			t.Errorf("%s: error is %v, want %s %s", name, err, c.code, c.reason)
		}
	}
}

// A client weighs a NOT_FOUND by the epoch of the replica that answers it.
func TestRPCs_NotFoundHasTheEpoch(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	const none = "namespaces/shop/serviceslices/none"
	for name, call := range map[string]func() error{
		"get": func() error {
			_, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: none})
			return err
		},
		"plan": func() error {
			_, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: none})
			return err
		},
		"explain": func() error {
			_, err := client.ExplainEndpoint(t.Context(), podRequest("none", "web-0"))
			return err
		},
		"explain a pod": func() error {
			_, err := client.ExplainEndpoint(t.Context(), podRequest("web", "web-0"))
			return err
		},
		"reconcile": func() error {
			_, err := client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: none, ValidateOnly: true})
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
