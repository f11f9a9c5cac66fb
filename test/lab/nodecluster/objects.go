package nodecluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/roles"
)

// requestTimeout limits one question to a kube-apiserver that may be frozen.
const requestTimeout = 5 * time.Second

// Ready returns nil if the kube-apiserver of a node says that it is ready.
func (c *Cluster) Ready(ctx context.Context, node *Node) error {
	client, err := c.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	result := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx)
	var code int
	if result.StatusCode(&code); result.Error() != nil {
		return result.Error()
	}
	if code != http.StatusOK {
		return fmt.Errorf("/readyz answers %d", code)
	}
	return nil
}

// applyObjects gives nodes and Trivet's servers their rights, and creates the Services of the
// servers.
func (c *Cluster) applyObjects(ctx context.Context) error {
	client, err := c.Client(c.nodes[0])
	if err != nil {
		return err
	}
	if err := letNodesRenewCertificates(ctx, client); err != nil {
		return err
	}
	if c.config.WithoutTrivet {
		return nil
	}
	folders := []string{"base", "components/node-health", "components/taint-eviction", "components/endpointslice-mirroring"}
	if err := roles.Apply(ctx, c.RESTConfig(c.nodes[0]), deploy.Files(), folders...); err != nil {
		return err
	}
	if err := admitStaticPods(ctx, client); err != nil {
		return err
	}
	authority := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "trivet-ca", Namespace: roles.Namespace},
		Data: map[string]string{
			"ca.crt":        string(c.pki.trivet.CertPEM()),
			"client-ca.crt": string(certs.Bundle(c.pki.trivet, c.pki.kubernetes)),
		},
	}
	_, err = client.CoreV1().ConfigMaps(roles.Namespace).Create(ctx, authority, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ConfigMap %s: %w", authority.Name, err)
	}
	for _, server := range certs.Servers() {
		text, err := fs.ReadFile(deploy.Files(), "base/"+server+"/service.yaml")
		if err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
		service := &corev1.Service{}
		if err := yaml.Unmarshal(text, service); err != nil {
			return fmt.Errorf("parse Service %s: %w", server, err)
		}
		_, err = client.CoreV1().Services(service.Namespace).Create(ctx, service, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Service %s: %w", server, err)
		}
	}
	return nil
}

// admitStaticPods is component host-access: Pod Security lets mirror Pods use the machine, and a
// policy keeps all other Pods from it.
func admitStaticPods(ctx context.Context, client kubernetes.Interface) error {
	const label = `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`
	_, err := client.CoreV1().Namespaces().Patch(ctx, roles.Namespace, types.MergePatchType, []byte(label), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("label namespace %s: %w", roles.Namespace, err)
	}
	text, err := fs.ReadFile(deploy.Files(), "components/host-access/policy.yaml")
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	documents := strings.Split(string(text), "\n---\n")
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	for i, object := range []any{policy, binding} {
		if len(documents) <= i {
			return errors.New("the manifest of component host-access has not two documents")
		}
		if err := yaml.UnmarshalStrict([]byte(documents[i]), object); err != nil {
			return fmt.Errorf("parse manifest of component host-access: %w", err)
		}
	}
	_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create policy: %w", err)
	}
	_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create binding of policy: %w", err)
	}
	return nil
}

// letNodesRenewCertificates has kube-controller-manager approve requests of kubelets, as kubeadm
// does.
func letNodesRenewCertificates(ctx context.Context, client kubernetes.Interface) error {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "nodes-renew-certificates"},
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
			Name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
		},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
	}
	_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ClusterRoleBinding %s: %w", binding.Name, err)
	}
	return nil
}

// labelControlPlane labels the control-plane nodes as kubeadm does. No kubelet may do that itself.
func (c *Cluster) labelControlPlane(ctx context.Context) error {
	client, err := c.Client(c.nodes[0])
	if err != nil {
		return err
	}
	for _, node := range c.config.Nodes {
		if !node.ControlPlane {
			continue
		}
		const label = `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`
		if _, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("label node %s: %w", node.Name, err)
		}
	}
	return nil
}

// WaitReady waits until all nodes and their static Pods are ready.
func (c *Cluster) WaitReady(ctx context.Context, timeout time.Duration) error {
	client, err := c.Client(c.nodes[0])
	if err != nil {
		return err
	}
	return poll(ctx, timeout, func() error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return c.unready(ctx, client)
	})
}

// unready names the nodes and the static Pods that are not ready.
func (c *Cluster) unready(ctx context.Context, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Pods: %w", err)
	}
	missing := map[string]bool{}
	for i, node := range c.nodes {
		missing["node "+node.Name] = true
		manifests, err := staticPods(c.config, i)
		if err != nil {
			return err
		}
		for file := range manifests {
			missing["Pod "+strings.TrimSuffix(file, ".yaml")+"-"+node.Name] = true
		}
	}
	for i := range nodes.Items {
		if nodeReady(&nodes.Items[i]) {
			delete(missing, "node "+nodes.Items[i].Name)
		}
	}
	for i := range pods.Items {
		if podReady(&pods.Items[i]) {
			delete(missing, "Pod "+pods.Items[i].Name)
		}
	}
	var problems []error
	for name := range missing {
		problems = append(problems, fmt.Errorf("%s is not ready", name))
	}
	return errors.Join(problems...)
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
