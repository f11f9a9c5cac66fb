package clusterstate

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// addKubelet adds a Node whose kubelet answers each request for a log with the request itself.
func addKubelet(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s previous=%s\n", r.URL.Path, r.URL.Query().Get("previous"))
	}))
	t.Cleanup(kubelet.Close)
	host, port, _ := net.SplitHostPort(kubelet.Listener.Addr().String())
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A Pod in a crash loop never joins, and the Pods of the former template serve on.
func TestWorkloads_SayWhyAPodDoesNotStart(t *testing.T) {
	t.Parallel()
	client := testkit.Kube(t)
	namespace := testkit.Namespace(t, client)
	addKubelet(t, client, namespace)
	const name = "slicesvc"
	label := map[string]string{serviceLabel: name}
	wanted := int32(2)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: label}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "i"}}}}
	deployment, err := client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &wanted, Selector: &metav1.LabelSelector{MatchLabels: label}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other := deployment.DeepCopy() // of another program in the namespace
	other.ObjectMeta, other.Spec.Selector.MatchLabels = metav1.ObjectMeta{Name: "other"}, map[string]string{serviceLabel: "other"}
	other.Spec.Template.Labels = map[string]string{serviceLabel: "other"}
	if _, err := client.AppsV1().Deployments(namespace).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"}}
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	unscheduled := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}
	log := "/containerLogs/" + namespace
	var wantPods []diagnosis.WorkloadPod
	for _, pod := range []struct {
		diagnosis.WorkloadPod
		status    corev1.ContainerStatus
		condition corev1.PodCondition
	}{
		{WorkloadPod: diagnosis.WorkloadPod{Name: "a-ready"}, condition: corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		{
			status: corev1.ContainerStatus{State: waits("CrashLoopBackOff", "back-off"), LastTerminationState: failed},
			WorkloadPod: diagnosis.WorkloadPod{
				Name: "b-crashes", Problem: "container server waits (CrashLoopBackOff): it ended with exit code 2 (Error)", Stuck: true,
				LastLine: log + "/b-crashes/server previous=true",
			},
		},
		{
			status: corev1.ContainerStatus{State: failed},
			WorkloadPod: diagnosis.WorkloadPod{
				Name: "c-ended", Problem: "container server ended with exit code 2 (Error)", Stuck: true, LastLine: log + "/c-ended/server previous=",
			},
		},
		{
			status:      corev1.ContainerStatus{State: waits("ErrImagePull", "no such image")},
			WorkloadPod: diagnosis.WorkloadPod{Name: "d-no-image", Problem: "container server does not start (ErrImagePull): no such image", Stuck: true},
		},
		{
			status:      corev1.ContainerStatus{State: waits("ContainerCreating", "")},
			WorkloadPod: diagnosis.WorkloadPod{Name: "e-new", Problem: "container server is not started yet"},
		},
		{condition: unscheduled, WorkloadPod: diagnosis.WorkloadPod{Name: "f-no-node", Problem: "it is not scheduled: 0/3 nodes", Stuck: true}},
	} {
		created, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: label}, Spec: corev1.PodSpec{NodeName: namespace, Containers: template.Spec.Containers},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.status.Name = "server"
		created.Status.Phase = corev1.PodRunning
		created.Status.ContainerStatuses = []corev1.ContainerStatus{pod.status}
		if pod.condition.Type != "" {
			created.Status.Conditions = []corev1.PodCondition{pod.condition}
		}
		if _, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantPods = append(wantPods, pod.WorkloadPod)
	}
	deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"}}
	if _, err := client.AppsV1().Deployments(namespace).UpdateStatus(t.Context(), deployment, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kube, err := NewKube(testkit.Cluster(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer kube.Close()

	found, err := kube.Workloads(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}

	want := []diagnosis.Workload{{Kind: "Deployment", Name: name, Service: name, Wanted: 2, Problem: "exceeded quota", Pods: wantPods}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	if result := diagnosis.Workloads(found, diagnosis.Installation{}); result.State != diagnosis.Failed {
		t.Errorf("%+v", result)
	}
}

// A certificate of another authority is found before the server that has it is restarted.
func TestSecretCertificates_AreComparedWithThePublishedAuthorities(t *testing.T) {
	t.Parallel()
	client := testkit.Kube(t)
	namespace := testkit.Namespace(t, client)
	own, other := identitytest.NewAuthority(t, "own"), identitytest.NewAuthority(t, "other")
	kube, err := NewKube(testkit.Cluster(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer kube.Close()
	for name, authority := range map[string]*identitytest.Authority{
		"trivet-leasesvc-tls": own, "trivet-gateway-tls": other, "trivet-gateway-etcd": other, "trivet-ca": other,
	} {
		certificate, key := authority.Issue(t, name)
		secretType := corev1.SecretTypeTLS
		if !strings.HasSuffix(name, "-tls") {
			secretType = corev1.SecretTypeOpaque // as kubectl create secret generic makes it
		}
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Type: secretType,
			Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key},
		}
		if _, err := client.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	problems := func() string {
		t.Helper()
		found, err := kube.SecretCertificates(t.Context(), namespace)
		if err != nil || len(found) != 3 {
			t.Fatalf("%+v, %v", found, err)
		}
		var bad []string
		for _, certificate := range found {
			if certificate.Problem != "" {
				bad = append(bad, certificate.Name+": "+certificate.Problem)
			}
		}
		return strings.Join(bad, "\n")
	}
	if got := problems(); got != "" {
		t.Errorf("without published authorities: %s", got)
	}
	trust := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "trivet-ca"}, Data: map[string]string{"ca.crt": string(identitytest.Bundle(own))}}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), trust, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := problems(); !strings.HasPrefix(got, "Secret trivet-gateway-tls: ") || strings.Contains(got, "\n") {
		t.Errorf("problems:\n%s\nwant one of Secret trivet-gateway-tls", got)
	}
}
