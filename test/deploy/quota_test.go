package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// criticalNeedsQuota makes kube-apiserver admit Pods of the critical classes only where a quota
// names the class, as GKE does.
const criticalNeedsQuota = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`

// quotaCluster starts a cluster with the rule of GKE. As in every cluster of the tests,
// authorization is Node and RBAC, and NodeRestriction is on.
func quotaCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	config := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(config, []byte(criticalNeedsQuota), 0o600); err != nil {
		t.Fatal(err)
	}
	return testkit.OwnCluster(t, devcluster.Config{APIServerArgs: []string{"--admission-control-config-file=" + config}})
}

// countQuotas does what the controller of quotas does, which does not run: it sets their status.
func countQuotas(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	quotas, err := kube.CoreV1().ResourceQuotas(system).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, quota := range quotas.Items {
		none := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
		quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: none}
		if _, err := kube.CoreV1().ResourceQuotas(system).UpdateStatus(t.Context(), &quota, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// createPod creates a Pod in dry run.
func createPod(ctx context.Context, kube kubernetes.Interface, spec corev1.PodSpec) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "asked"}, Spec: spec}
	_, err := kube.CoreV1().Pods(system).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// Where critical classes need a quota, that of the chart and of the base admits each Pod. Until it
// is there, and wherever Pods are refused, trivet check --pre tells the refusal.
func TestQuota_CriticalPodsAreAdmittedWhereTheyNeedOne(t *testing.T) {
	cluster := quotaCluster(t)
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	expectCheck := func(state, found string) {
		t.Helper()
		eventually(t, func() error { // admission learns of namespaces and quotas a moment later
			got, err := checkOfPods(t, cluster)
			if err == nil && (got.State != state || !strings.Contains(got.Found, found)) {
				err = fmt.Errorf("pre-pods: %+v, want %s with %q", got, state, found)
			}
			return err
		})
	}
	server := newApplier(t, cluster.RESTConfig())
	expectCheck("skipped", "does not exist")
	server.applyNamespaces(t, render(t, "base"))
	expectCheck("warning", "insufficient quota to match these scopes")
	found := pods(t, template(t, set(withAllPods()...)...))
	for name, spec := range found {
		if err := createPod(t.Context(), kube, spec); err == nil {
			t.Errorf("%s without a quota: %v, want a refusal", name, err)
		}
	}
	for _, quota := range ofKind[corev1.ResourceQuota](t, render(t, "base"), "ResourceQuota") {
		if _, err := kube.CoreV1().ResourceQuotas(system).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	countQuotas(t, kube)
	expectCheck("warning", "violates PodSecurity") // the agents in a namespace of level restricted
	server.applyNamespaces(t, render(t, withAgent))
	expectCheck("ok", "takes the Pods")
	for name, spec := range found {
		if err := createPod(t.Context(), kube, spec); err != nil {
			t.Errorf("%s with the quota: %v", name, err)
		}
	}
}

type checkResult struct{ ID, State, Found string }

// checkOfPods returns what trivet check --pre says about Pods.
func checkOfPods(t *testing.T, cluster *devcluster.Cluster) (checkResult, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), gobuild.Command(t, "trivet"), "check", "--pre", "--node=no", "-o", "json", "--kubeconfig", cluster.Kubeconfig())
	output, err := command.Output() // its code is that of all checks
	var report struct{ Checks []checkResult }
	if jsonErr := json.Unmarshal(output, &report); jsonErr != nil {
		return checkResult{}, fmt.Errorf("trivet check: %w, %w", err, jsonErr)
	}
	for _, result := range report.Checks {
		if result.ID == "pre-pods" {
			return result, nil
		}
	}
	return checkResult{}, fmt.Errorf("no check pre-pods: %s", output)
}
