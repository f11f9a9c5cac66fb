package deploy

import (
	"context"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// keysOf returns the Secrets of a Pod. The account of the Job certs reads all of them, also without
// a volume.
func keysOf(spec corev1.PodSpec) []string {
	var names []string
	for _, volume := range spec.Volumes {
		if volume.Secret != nil {
			names = append(names, volume.Secret.SecretName)
		}
	}
	if spec.ServiceAccountName == "certs" {
		names = append(names, "trivet-ca")
	}
	return names
}

// runsOn says whether a scheduler may bind a Pod to a node with labels and without taints. It knows
// the forms of the manifests alone.
func runsOn(t *testing.T, spec corev1.PodSpec, labels map[string]string) bool {
	t.Helper()
	for key, value := range spec.NodeSelector {
		if labels[key] != value {
			return false
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return true
	}
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			_, has := labels[e.Key]
			if e.Operator != corev1.NodeSelectorOpExists {
				t.Fatalf("the affinity has operator %s", e.Operator)
			}
			return !has
		}) {
			return true
		}
	}
	return false
}

// Each Pod with a key of each choice runs on control-plane nodes, also if the user has an affinity.
func TestPlacement_KeysAreOnControlPlaneNodes(t *testing.T) {
	helm(t)
	choices := map[string]map[string]corev1.PodSpec{
		"an affinity of the user": pods(t, template(t, set(etcdEndpoint,
			"pods.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
			"pods.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
			"pods.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[0].key=b",
			"pods.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[0].operator=Exists")...)),
	}
	for name, c := range combinations() {
		if c.show == "" && name != "any-node" {
			choices[name] = pods(t, c.render(t))
			choices["kustomize "+name] = pods(t, render(t, c.tree))
		}
	}
	for name, values := range variants() {
		choices[name] = pods(t, template(t, set(append(values, "namespace.create=true")...)...))
	}
	worker := map[string]string{"a": "b", "b": "b", corev1.LabelOSStable: "linux"}
	machine := map[string]string{"a": "b", "b": "b", corev1.LabelOSStable: "linux", controlPlaneLabel: "true"}
	for name, found := range choices {
		for pod, spec := range found {
			if len(keysOf(spec)) == 0 {
				continue
			}
			tolerates := slices.Contains(spec.Tolerations, corev1.Toleration{Key: controlPlaneLabel, Operator: corev1.TolerationOpExists})
			if runsOn(t, spec, worker) || !runsOn(t, spec, machine) || !tolerates {
				t.Errorf("%s: %s with %v is not for control-plane nodes alone: %+v, %+v", name, pod, keysOf(spec), spec.Affinity, spec.Tolerations)
			}
		}
	}
}

// The kubelet of a worker reads no key of an installation, on a kube-apiserver with the Node
// authorizer and NodeRestriction: no Pod with a key runs there, and it cannot make itself a node of
// the control plane. With controlPlaneOnly=false it reads all of them.
func TestPlacement_AWorkersKubeletReadsNoKey(t *testing.T) {
	makeSystem(t)
	kube := testkit.Kube(t)
	for _, node := range []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "placed-worker", Labels: map[string]string{corev1.LabelOSStable: "linux"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "placed-machine", Labels: map[string]string{corev1.LabelOSStable: "linux", controlPlaneLabel: ""}}},
	} {
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), &node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kube.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}) })
	}
	worker, machine := kubelet(t, "placed-worker").CoreV1(), kubelet(t, "placed-machine").CoreV1()
	label := []byte(`{"metadata":{"labels":{"` + controlPlaneLabel + `":""}}}`)
	if _, err := worker.Nodes().Patch(t.Context(), "placed-worker", types.MergePatchType, label, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a worker labels itself: %v, want a refusal", err)
	}
	for _, c := range []struct {
		tree  string
		reads bool
	}{{"overlays/standalone", false}, {testdata + "chart/any-node", true}} {
		t.Run(strings.ReplaceAll(c.tree, "/", "_"), func(t *testing.T) {
			var secrets []string
			for name, spec := range pods(t, render(t, c.tree)) {
				secrets = append(secrets, keysOf(spec)...)
				for node, labels := range map[string]map[string]string{
					"placed-worker":  {corev1.LabelOSStable: "linux"},
					"placed-machine": {corev1.LabelOSStable: "linux", controlPlaneLabel: ""},
				} {
					if !runsOn(t, spec, labels) {
						continue
					}
					spec.NodeName, spec.TopologySpreadConstraints = node, nil
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ReplaceAll(name, "/", "-") + "-"}, Spec: spec}
					made, err := kube.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						_ = kube.CoreV1().Pods(system).Delete(context.Background(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
					})
				}
			}
			read := func(kubelet interface {
				Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error)
			}, secret string) error {
				_, err := kubelet.Get(t.Context(), secret, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil // it may read it
				}
				return err
			}
			for _, secret := range secrets {
				if secret == "trivet-ca" {
					continue // by the token of account certs, below
				}
				eventually(t, func() error { return read(machine.Secrets(system), secret) })
				if c.reads {
					eventually(t, func() error { return read(worker.Secrets(system), secret) })
				} else if err := read(worker.Secrets(system), secret); !apierrors.IsForbidden(err) {
					t.Errorf("a worker reads %s: %v, want a refusal", secret, err)
				}
			}
			token := &authenticationv1.TokenRequest{}
			if _, err := worker.ServiceAccounts(system).CreateToken(t.Context(), "certs", token, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("a worker gets a token of account certs that is bound to no Pod: %v, want a refusal", err)
			}
			if len(secrets) < 8 {
				t.Errorf("the Pods have the Secrets %v, which lacks those of some server", secrets)
			}
		})
	}
}
