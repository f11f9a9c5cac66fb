package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// release is an installation of the chart.
type release struct {
	*applier

	cluster *devcluster.Cluster
	kube    kubernetes.Interface
}

// newRelease prepares a cluster where none of the objects exists. Tests of kustomize make some.
func newRelease(t *testing.T, cluster *devcluster.Cluster, objects []*unstructured.Unstructured) *release {
	t.Helper()
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	r := &release{applier: newApplier(t, cluster.RESTConfig()), cluster: cluster, kube: kube}
	removeCertificates(t, kube)
	for _, object := range objects {
		if found := r.find(t, object); found != nil {
			err := r.resource(t, object).Delete(t.Context(), object.GetName(), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
	}
	r.applyNamespaces(t, render(t, "base"))
	t.Cleanup(func() { r.restore(t) })
	return r
}

// resource returns the client of an object's kind in its namespace.
func (r *release) resource(t *testing.T, object *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	kind := object.GroupVersionKind()
	mapping, err := r.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatal(err)
	}
	return r.client.Resource(mapping.Resource).Namespace(object.GetNamespace())
}

// helm runs helm about the release.
func (r *release) helm(t *testing.T, args ...string) {
	t.Helper()
	if _, err := runHelm(t, append(args, "--namespace", system, "--kubeconfig", r.cluster.Kubeconfig())...); err != nil {
		t.Fatal(err)
	}
}

// find returns the object at the kube-apiserver, nil if it does not exist.
func (r *release) find(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	found, err := r.resource(t, object).Get(t.Context(), object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expect compares what exists with wanted objects, by name, and with what other values render.
func (r *release) expect(t *testing.T, wanted, others []*unstructured.Unstructured) {
	t.Helper()
	name := func(object *unstructured.Unstructured) string {
		return fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
	}
	names := map[string]bool{}
	for _, object := range wanted {
		names[name(object)] = true
		if r.find(t, object) == nil {
			t.Errorf("%s does not exist", name(object))
		}
	}
	for _, object := range others {
		if !names[name(object)] && r.find(t, object) != nil {
			t.Errorf("%s exists and should not", name(object))
		}
	}
}

// admitsPods expects that kube-apiserver admits each Pod of the workloads that exist.
func (r *release) admitsPods(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	countQuotas(t, r.kube)
	var installed []*unstructured.Unstructured
	for _, object := range objects {
		if found := r.find(t, object); found != nil {
			installed = append(installed, found)
		}
	}
	found := pods(t, installed)
	if len(found) < 5 {
		t.Errorf("the release has %d workloads, want servers, a Job and a CronJob", len(found))
	}
	for name, spec := range found {
		eventually(t, func() error { // admission learns of quotas a moment later
			if err := createPod(t.Context(), r.kube, spec); err != nil {
				return fmt.Errorf("a Pod of %s: %w", name, err)
			}
			return nil
		})
	}
}

// The chart is installed, upgraded with other values, rolled back and uninstalled, where critical
// classes need a quota. Each step leaves the objects of its values and no other object of the
// chart, and the Pods of its workloads are admitted. What users and trivet certs made stays. No Pod
// runs, because there is no kubelet.
func TestRelease_InstallUpgradeRollbackUninstall(t *testing.T) {
	testkit.LongTest(t, 2)
	first := set(etcdEndpoint)
	second := set(etcdEndpoint, "image.tag=next", "servers.leasesvc.replicas=3", "servers.leasesvc.nodeHealth=true",
		"servers.gateway.service.type=LoadBalancer", "servers.bootstrapsvc.mode=StaticPod", "agent.mode=DaemonSet")
	before, after := template(t, first...), template(t, second...)
	r := newRelease(t, quotaCluster(t), slices.Concat(before, after))
	for _, name := range []string{"trivet-leasesvc-etcd", "trivet-ca"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := r.kube.CoreV1().Secrets(system).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.helm(t, slices.Concat([]string{"install", "trivet", chartFolder}, first)...)
	r.expect(t, before, after)
	r.admitsPods(t, before)
	r.expectFlows(t)

	upgrade := slices.Concat([]string{"upgrade", "trivet", chartFolder}, second)
	_, err := runHelm(t, slices.Concat(upgrade, []string{"--namespace", system, "--kubeconfig", r.cluster.Kubeconfig()})...)
	if err == nil {
		t.Fatal("the agent is let into a namespace that refuses its Pods")
	}
	r.expect(t, before, after)
	r.applyNamespaces(t, render(t, withAgent)) // as the refusal says: the namespace enforces privileged
	r.helm(t, upgrade...)
	r.expect(t, after, before)
	r.admitsPods(t, after)
	if leases := r.deployment(t, "leasesvc"); *leases.Spec.Replicas != 3 || leases.Spec.Template.Spec.Containers[0].Image != "trivet:next" {
		t.Errorf("leasesvc has %d replicas of %s", *leases.Spec.Replicas, leases.Spec.Template.Spec.Containers[0].Image)
	}

	r.helm(t, "rollback", "trivet", "1")
	r.expect(t, before, after)
	r.admitsPods(t, before)
	if leases := r.deployment(t, "leasesvc"); *leases.Spec.Replicas != 2 || leases.Spec.Template.Spec.Containers[0].Image != "trivet:devel" {
		t.Errorf("after the rollback leasesvc has %d replicas of %s", *leases.Spec.Replicas, leases.Spec.Template.Spec.Containers[0].Image)
	}

	r.helm(t, "uninstall", "trivet")
	r.expect(t, nil, slices.Concat(before, after))
	secrets, err := r.kube.CoreV1().Secrets(system).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, secret := range secrets.Items {
		left = append(left, secret.Name)
		if err := r.kube.CoreV1().Secrets(system).Delete(t.Context(), secret.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"trivet-ca", "trivet-leasesvc-etcd"}; !slices.Equal(left, want) {
		t.Errorf("Secrets %v are left, want %v", left, want)
	}
}

func (r *release) deployment(t *testing.T, name string) *appsv1.Deployment {
	t.Helper()
	deployment, err := r.kube.AppsV1().Deployments(system).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return deployment
}

// expectFlows asks as each server, and expects that kube-apiserver serves the request at the level
// of the chart: it names the FlowSchema in its answer. Another account keeps its level.
func (r *release) expectFlows(t *testing.T) {
	t.Helper()
	schema, err := r.kube.FlowcontrolV1().FlowSchemas().Get(t.Context(), "trivet", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for user, ours := range map[string]bool{
		username("leasesvc"): true, username("slicesvc"): true, username("bootstrapsvc"): true, username("gateway"): true,
		"trivet:leasesvc": true, username("other"): false, "system:serviceaccount:other:leasesvc": false,
	} {
		eventually(t, func() error {
			asked, err := r.flowOf(t.Context(), filepath.Join(t.TempDir(), "kubeconfig"), user)
			if err == nil && (asked == string(schema.UID)) != ours {
				err = fmt.Errorf("a request of %s is of FlowSchema %s; that of the chart is %s", user, asked, schema.UID)
			}
			return err
		})
	}
}

// flowOf returns the FlowSchema of a request of the user.
func (r *release) flowOf(ctx context.Context, kubeconfig, user string) (string, error) {
	if err := r.cluster.WriteKubeconfig(kubeconfig, user, "system:serviceaccounts"); err != nil {
		return "", err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	var flow string
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				flow = response.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
			}
			return response, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	if _, err := client.CoreV1().Services("default").List(ctx, metav1.ListOptions{}); err != nil && !apierrors.IsForbidden(err) {
		return "", err
	}
	return flow, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// jobArguments are the arguments of the Job that makes the certificates.
func jobArguments(t *testing.T, objects []*unstructured.Unstructured) []string {
	t.Helper()
	jobs := ofKind[batchv1.Job](t, objects, "Job")
	if len(jobs) != 1 {
		t.Fatalf("%d Jobs, want one", len(jobs))
	}
	return jobs[0].Spec.Template.Spec.Containers[0].Args
}

// removeCertificates removes what the Job made, because tests of other installations begin without.
func removeCertificates(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	core, ours := kube.CoreV1(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=trivet-certs"}
	err := errors.Join(
		core.Secrets(system).DeleteCollection(context.Background(), metav1.DeleteOptions{}, ours),
		core.ConfigMaps(system).DeleteCollection(context.Background(), metav1.DeleteOptions{}, ours))
	if err != nil {
		t.Error(err)
	}
}

// eventually waits for what a busy machine may take long for.
func eventually(t *testing.T, condition func() error) {
	t.Helper()
	testkit.Eventually(t, time.Minute, condition)
}
