package clusterstate

import (
	"context"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/etcdroles"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestEtcdAccess_OfARoleAndOfRoot(t *testing.T) {
	cluster := testkit.OwnCluster(t, devcluster.Config{EtcdOnly: true})
	roles := etcdroles.Of(etcdconn.KeyPrefix("default"), etcdroles.DefaultRegistry)
	wide := etcdroles.Role{Name: "wide", Grants: []etcdroles.Grant{{Key: "/registry/clusterrolebindings/", End: "/registry/clusterrolebindings0", Write: true}}}
	root := testkit.EnableEtcdUsers(t, cluster, append(roles, wide))
	access := func(user string) diagnosis.EtcdAccess {
		t.Helper()
		found, err := EtcdAccess(t.Context(), testkit.EtcdAs(t, cluster, user))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if _, err := root.Put(t.Context(), "/trivet/default/terms/leasesvc/0", "x"); err != nil {
		t.Fatal(err)
	}
	if own := access("root"); !own.All || own.Foreign != 0 {
		t.Errorf("root at an etcd for Trivet alone: %+v", own)
	}
	if _, err := root.Put(t.Context(), "/registry/secrets/default/a", "x"); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]diagnosis.State{
		"root": diagnosis.Warning, "wide": diagnosis.Warning, "trivet:leasesvc": diagnosis.OK, "trivet:bootstrapsvc": diagnosis.OK,
	} {
		if got := diagnosis.EtcdRights(access(user)); got.State != want {
			t.Errorf("%s: %+v, want %s", user, got, want)
		}
	}
	// Before an install, the rights of bootstrapsvc to keys of kube-apiserver count, too.
	for user, want := range map[string]diagnosis.State{
		"root": diagnosis.OK, "trivet:bootstrapsvc": diagnosis.OK, "trivet:leasesvc": diagnosis.Warning, "wide": diagnosis.Failed,
	} {
		found, err := EtcdTransaction(t.Context(), testkit.EtcdAs(t, cluster, user), "default")
		if err != nil {
			t.Fatal(err)
		}
		if got := diagnosis.EtcdTransactions(found); got.State != want {
			t.Errorf("a transaction of %s: %+v, want %s", user, got, want)
		}
	}
}

func TestKeyPlacement_FindsPodsWithKeys(t *testing.T) {
	client := testkit.Kube(t)
	namespace := testkit.Namespace(t, client)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{controlPlaneLabel: "true"}}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}) })
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "trivet-leasesvc-etcd"}}
	projected := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "trivet-gateway-tls"}}},
	}}}
	csi := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "secrets-store.csi.k8s.io", NodePublishSecretRef: &corev1.LocalObjectReference{Name: "vault"}}}
	folder := func(path string) []corev1.Volume {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}}
	}
	key := corev1.LocalObjectReference{Name: "trivet-slicesvc-tls"}
	variable := []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: key, Key: "tls.key"}}}}
	variables := []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: key}}}
	container := corev1.Container{Name: "c", Image: "i"}
	public := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "trivet-ca"}}}
	for name, spec := range map[string]corev1.PodSpec{
		"leasesvc": {NodeName: namespace, Volumes: []corev1.Volume{{Name: "v", VolumeSource: secret}}},
		"gateway":  {NodeName: "a-worker", Volumes: []corev1.Volume{{Name: "v", VolumeSource: projected}}},
		"certs":    {ServiceAccountName: certsAccount},
		"csi":      {Volumes: []corev1.Volume{{Name: "v", VolumeSource: csi}}},
		"variable": {Containers: []corev1.Container{{Name: "c", Image: "i", Env: variable}}},
		"prepared": {InitContainers: []corev1.Container{{Name: "first", Image: "i", EnvFrom: variables}}},
		"etc":      {Volumes: folder("/etc")},
		"pki":      {Volumes: folder("/etc/kubernetes/pki/etcd")},
		"other": {
			NodeName: "a-worker", Volumes: append(folder("/etc/trivet/trust"), corev1.Volume{Name: "public", VolumeSource: public}),
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		},
	} {
		if len(spec.Containers) == 0 {
			spec.Containers = []corev1.Container{container}
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waits := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "csi", Namespace: namespace}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available"},
	}}}
	if _, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), waits, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kube, err := NewKube(testkit.Cluster(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer kube.Close()
	found, err := kube.KeyPlacement(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, pod := range found.Pods {
		keys[pod.Name] = strings.Join(append(pod.Keys, pod.Node+pod.Waits), " ")
	}
	want := map[string]string{
		"leasesvc": "trivet-leasesvc-etcd " + namespace, "gateway": "trivet-gateway-tls a-worker", "certs": "account certs ",
		"csi": "a volume of secrets-store.csi.k8s.io vault 0/2 nodes are available", "variable": "trivet-slicesvc-tls ", "prepared": "trivet-slicesvc-tls ",
		"etc": "/etc ", "pki": "/etc/kubernetes/pki/etcd ",
	}
	if !maps.Equal(keys, want) {
		t.Errorf("the Pods with keys and their nodes are %v, want %v", keys, want)
	}
	if result := diagnosis.KeyPlacement(found); result.State != diagnosis.Warning {
		t.Errorf("%+v, want a warning about the gateway", result)
	}
}
