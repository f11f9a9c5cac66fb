package leasesvc_test

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// unknown returns the names of the nodes that are marked as unknown.
func (f *nodeFixture) unknown(names ...string) (marked []string) {
	f.t.Helper()
	for _, name := range names {
		if conditions(f.node(name))[corev1.NodeReady] == corev1.ConditionUnknown {
			marked = append(marked, name)
		}
	}
	return marked
}

// A kube-apiserver that needs a while for each read of a Lease delays the verdict, and no more.
func TestNodeHealth_SlowReadsDelayTheVerdictAndNoMore(t *testing.T) {
	t.Parallel()
	for _, slowness := range []time.Duration{500 * time.Millisecond, 2 * time.Second} {
		t.Run(slowness.String(), func(t *testing.T) {
			proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
			f := newNodeFixtureThrough(t, proxy.RESTConfig(), 24)
			dead, live := f.names[:20], f.names[20:]
			proxy.Delay(faultproxy.Resource("leases", "get", "list"), slowness)
			f.silence(dead...)
			silent := time.Now()
			bound := grace + 6*slowness + slack
			testkit.Eventually(t, bound, func() error {
				if marked := f.unknown(dead...); len(marked) != len(dead) {
					return fmt.Errorf("%d of %d dead nodes are marked %v after they fell silent", len(marked), len(dead), time.Since(silent))
				}
				return nil
			})
			t.Logf("all were marked within %v, with a grace period of %v", time.Since(silent), grace)
			f.expectReady(live...)
		})
	}
}

// An agent that lives and does not observe its kubelet does not hide that the kubelet has stopped.
func TestNodeHealth_LivingAgentDoesNotHideAStoppedKubelet(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 4)
	f.beatUntil(time.Now().Add(3*renewal), false, f.names[0])
	f.silence(f.names[0])
	begin := time.Now()
	f.beatUntil(begin.Add(grace-2*renewal), false, f.names[0])
	f.expectReady(f.names...)
	for len(f.unknown(f.names[0])) == 0 {
		if silent := time.Since(begin); silent > grace+slack {
			t.Fatalf("Ready of %s is still True %v after its kubelet stopped, while its agent sends beats", f.names[0], silent)
		}
		f.beatUntil(time.Now().Add(renewal/2), false, f.names[0])
	}
	f.expectReady(f.names[1:]...)
}

// All agents fall silent at once, and do not come back. Their kubelets renew their Leases, so that
// no node is marked before its kubelet stops too.
func TestNodeHealth_SessionsThatExpireTogetherMarkNoNodeWhoseKubeletRenewsItsLease(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 8)
	f.beatUntil(time.Now().Add(3*renewal), true, f.names...)
	for cut := time.Now(); time.Since(cut) < 2*grace+slack; time.Sleep(100 * time.Millisecond) {
		if marked := f.unknown(f.names...); len(marked) > 0 {
			t.Fatalf("%d of %d nodes are marked %v after the beats of all ended together", len(marked), len(f.names), time.Since(cut))
		}
	}
	f.silence(f.names...)
	for _, name := range f.names {
		f.awaitUnknown(name)
	}
}

// A missing role reads as what it is.
func TestNodeHealth_ForbiddenReadsOfLeasesAreShown(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	f := newNodeFixtureThrough(t, proxy.RESTConfig(), 2)
	proxy.Refuse(faultproxy.Resource("leases", "get"), 403, "Forbidden")
	testkit.Eventually(t, slack, func() error {
		for _, problem := range f.service.Problems() {
			if problem.Code == "MARKING_SUSPENDED" {
				if !strings.Contains(problem.Message, "refuses") || !strings.Contains(problem.Message, "get") || !strings.Contains(problem.Message, "leases") {
					t.Errorf("the problem does not name what is refused: %s", problem.Message)
				}
				return nil
			}
		}
		return fmt.Errorf("no problem MARKING_SUSPENDED: %v", f.service.Problems())
	})
}

// kube-apiserver answers every read and refuses the renewals of all kubelets: none is marked, and a
// dead one is once renewals are taken again.
func TestNodeHealth_RefusedRenewalsMarkNoLivingNode(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 20)
	allow := refuseLeases(t, f)
	for refused := time.Now(); time.Since(refused) < 3*grace+slack; time.Sleep(100 * time.Millisecond) {
		if marked := f.unknown(f.names...); len(marked) > 0 {
			t.Fatalf("%d of %d living nodes are marked %v after renewals were refused", len(marked), len(f.names), time.Since(refused).Round(time.Second))
		}
	}
	f.silence(f.names[0])
	allow()
	f.awaitUnknown(f.names[0])
	f.expectReady(f.names[1:]...)
}

// refuseLeases has a policy refuse all writes of Leases of the test's nodes, until allow is called.
func refuseLeases(t *testing.T, f *nodeFixture) (allow func()) {
	t.Helper()
	policies, name, fail := f.admin.AdmissionregistrationV1(), f.ofTest, admissionv1.Fail
	_, policyErr := policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.ofTest}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "Leases are refused"}},
		},
	}, metav1.CreateOptions{})
	_, bindingErr := policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	allow = sync.OnceFunc(func() {
		ctx := context.Background()
		if err := errors.Join(policies.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			policies.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(allow)
	if err := errors.Join(policyErr, bindingErr); err != nil {
		t.Fatal(err)
	}
	return allow
}

// The watches of a replica die without an error, and it finds out by itself.
func TestNodeHealth_SilentWatchesAreReopened(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	f := newConfiguredNodeFixture(t, proxy.RESTConfig(), 4, func(c *leasesvc.Config) { c.WatchSilenceLimit = 2 * time.Second })
	for _, resource := range []string{"nodes", "pods", "leases"} {
		defer proxy.HoldOpenWatches(faultproxy.Resource(resource, "watch"))()
	}
	node := f.node(f.names[0])
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			node.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	if _, err := f.admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.awaitTaints(f.names[0], "example.org/gpu:NoSchedule", "node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/not-ready:NoSchedule")
	f.expectReady(f.names[1:]...)
}
