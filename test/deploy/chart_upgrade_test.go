package deploy

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// earlierChart is the chart of commit df9a053b, without rules and dashboards.
const earlierChart = "testdata/trivet-0.0.1.tgz"

// An upgrade from an earlier chart renders with the values of its release, in each way to keep
// them. A role that another writer has changed is a conflict, which docs/install.md names.
func TestRelease_UpgradesFromAnEarlierChart(t *testing.T) {
	testkit.LongTest(t, 1)
	values := set(etcdEndpoint, "servers.leasesvc.nodeHealth=true", "pods.annotations.a=b")
	output, err := runHelm(t, append([]string{"template", "trivet", earlierChart, "--namespace", system}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	before, after := objectsOf(t, []byte(output)), template(t, values...)
	for _, way := range []string{"--reuse-values", "--reset-then-reuse-values"} {
		t.Run(way, func(t *testing.T) {
			r := newRelease(t, testkit.Cluster(t), slices.Concat(before, after))
			r.helm(t, slices.Concat([]string{"install", "trivet", earlierChart}, values)...)
			r.expect(t, before, after)

			changed := []byte(`{"rules":[{"apiGroups":["trivet.dev"],"resources":["nodes"],"verbs":["get"]}]}`)
			_, err := r.kube.RbacV1().ClusterRoles().Patch(t.Context(), "trivet-viewer", types.MergePatchType, changed, metav1.PatchOptions{FieldManager: "kubectl-patch"})
			if err != nil {
				t.Fatal(err)
			}
			upgrade := []string{"upgrade", "trivet", chartFolder, way, "--namespace", system, "--kubeconfig", r.cluster.Kubeconfig()}
			if _, err := runHelm(t, upgrade...); err == nil || !strings.Contains(err.Error(), "conflict") {
				t.Errorf("upgrade over a changed role: %v, want a conflict", err)
			}
			if _, err := runHelm(t, append(upgrade, "--force-conflicts")...); err != nil {
				t.Fatal(err)
			}
			r.expect(t, after, before)
			if pod := r.deployment(t, "leasesvc").Spec.Template; pod.Annotations["a"] != "b" || pod.Spec.NodeSelector[corev1.LabelOSStable] != "linux" {
				t.Errorf("after the upgrade the Pod has annotations %v and selector %v", pod.Annotations, pod.Spec.NodeSelector)
			}
			r.helm(t, "uninstall", "trivet")
		})
	}
}

// What helm template prints is the same at each run. It is applied and applied again, which changes
// nothing, and then that of the next version is, with pruning, as Argo CD and Flux do.
func TestChart_IsAppliedWithoutHelm(t *testing.T) {
	folder := t.TempDir()
	if _, err := runHelm(t, "package", chartFolder, "--destination", folder, "--version", "9.8.7", "--app-version", "next"); err != nil {
		t.Fatal(err)
	}
	values := set(etcdEndpoint, "namespace.create=true", "agent.mode=DaemonSet", "monitoring.dashboards=true")
	printed := func(chart string) string {
		t.Helper()
		output, err := runHelm(t, append([]string{"template", "trivet", chart, "--namespace", system}, values...)...)
		if err != nil {
			t.Fatal(err)
		}
		return output
	}
	text := printed(chartFolder)
	if again := printed(chartFolder); again != text {
		t.Error("two runs print different objects")
	}
	first, next := objectsOf(t, []byte(text)), objectsOf(t, []byte(printed(filepath.Join(folder, "trivet-9.8.7.tgz"))))
	r := newRelease(t, testkit.Cluster(t), slices.DeleteFunc(slices.Concat(first, next), func(o *unstructured.Unstructured) bool { return o.GetKind() == "Namespace" }))
	// stored is an object without what kube-apiserver says about it.
	stored := func(object *unstructured.Unstructured) string {
		found := r.find(t, object)
		if found == nil {
			return ""
		}
		for _, field := range [][]string{{"status"}, {"metadata", "resourceVersion"}, {"metadata", "managedFields"}} {
			unstructured.RemoveNestedField(found.Object, field...)
		}
		return jsonOf(t, found)
	}
	apply := func(objects []*unstructured.Unstructured) (changed []string) {
		t.Helper()
		r.applyNamespaces(t, objects)
		for _, object := range objects {
			before := stored(object)
			if err := r.apply(t.Context(), object, false); err != nil {
				t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
			}
			if stored(object) != before {
				changed = append(changed, object.GetKind()+" "+object.GetName())
			}
		}
		return changed
	}
	prune := func(objects, kept []*unstructured.Unstructured) (pruned []string) {
		t.Helper()
		for _, object := range objects {
			stays := slices.ContainsFunc(kept, func(k *unstructured.Unstructured) bool {
				return k.GetKind() == object.GetKind() && k.GetNamespace() == object.GetNamespace() && k.GetName() == object.GetName()
			})
			if stays || object.GetKind() == "Namespace" {
				continue
			}
			if err := r.resource(t, object).Delete(t.Context(), object.GetName(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
				t.Error(err)
			}
			pruned = append(pruned, object.GetKind())
		}
		return pruned
	}
	if changed := apply(first); len(changed) < 40 {
		t.Errorf("the first apply makes %v", changed)
	}
	if changed := apply(first); len(changed) > 0 {
		t.Errorf("a second apply changes %v", changed)
	}
	apply(next)
	if pruned := prune(first, next); !slices.Equal(pruned, []string{"Job"}) {
		t.Errorf("the next version prunes %v, want the Job of the former one alone", pruned)
	}
	r.expect(t, next, first)
	prune(next, nil)
}

// Where members of etcd.embedded would wait for a node for ever, an install and an upgrade are
// refused with the value that changes it. helm template has no cluster to ask.
func TestChart_EmbeddedEtcdThatWouldWaitIsRefused(t *testing.T) {
	makeSystem(t)
	kube := testkit.Kube(t)
	embedded := []string{"etcd.embedded.enabled=true", "servers.slicesvc.enabled=false"}
	refusal := func(values ...string) string {
		t.Helper()
		args := slices.Concat([]string{"template", "trivet", chartFolder, "--namespace", system}, set(append(embedded, values...)...))
		if _, err := runHelm(t, args...); err != nil {
			t.Fatal(err)
		}
		_, err := runHelm(t, append(args, "--dry-run=server", "--kubeconfig", testkit.Cluster(t).Kubeconfig())...)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	taken := func(values ...string) {
		t.Helper()
		if text := refusal(values...); text != "" {
			t.Errorf("%v: %s", values, text)
		}
	}
	refused := func(want string, values ...string) {
		t.Helper()
		if text := refusal(values...); !strings.Contains(text, want) {
			t.Errorf("%v: %q, want a refusal with %q", values, text, want)
		}
	}
	addNode := func(name, zone string, controlPlane bool) {
		t.Helper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}}}
		if controlPlane {
			node.Labels[controlPlaneLabel] = ""
		}
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	taken() // a cluster without a Node
	addNode("etcd-worker", "b", false)
	refused("shows 0")
	addNode("etcd-a", "a", true)
	refused("antiAffinity=preferred")
	taken("etcd.embedded.antiAffinity=preferred")
	taken("etcd.embedded.members=1")
	taken("pods.controlPlaneOnly=false")
	addNode("etcd-b", "a", true)
	addNode("etcd-c", "a", true)
	taken()
	addVolume := func(claim, key, value string) {
		t.Helper()
		volumes, claims := kube.CoreV1().PersistentVolumes(), kube.CoreV1().PersistentVolumeClaims(system)
		expression := corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
		capacity := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		_, volumeErr := volumes.Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: claim},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: capacity, AccessModes: modes,
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/etcd"}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{expression}}},
				}},
			},
		}, metav1.CreateOptions{})
		_, claimErr := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: claim},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: claim, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: capacity}},
		}, metav1.CreateOptions{})
		if err := errors.Join(volumeErr, claimErr); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, free := context.Background(), []byte(`{"metadata":{"finalizers":null}}`) // their controller does not run
			_, claimErr := claims.Patch(ctx, claim, types.MergePatchType, free, metav1.PatchOptions{})
			_, volumeErr := volumes.Patch(ctx, claim, types.MergePatchType, free, metav1.PatchOptions{})
			if err := errors.Join(claimErr, volumeErr, claims.Delete(ctx, claim, metav1.DeleteOptions{}), volumes.Delete(ctx, claim, metav1.DeleteOptions{})); err != nil {
				t.Error(err)
			}
		})
	}
	addVolume("data-etcd-0", corev1.LabelTopologyZone, "a")
	taken()
	addVolume("data-etcd-1", corev1.LabelHostname, "etcd-worker")
	refused("no control-plane node reaches volume data-etcd-1")
	taken("pods.controlPlaneOnly=false")
}
