package clusterpool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// borrower is a borrowed control plane with its clients.
type borrower struct {
	t       *testing.T
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
}

func borrowReal(t *testing.T, dir string) *borrower {
	t.Helper()
	cluster, err := Borrow(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() })
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &borrower{t: t, cluster: cluster, kube: kube}
}

func (b *borrower) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// keys returns all of etcd but what kube-apiserver renews.
func (b *borrower) keys() map[string][]byte {
	b.t.Helper()
	etcd, err := b.cluster.EtcdClient()
	b.must(err)
	defer etcd.Close()
	keys, err := (&cluster{etcd: etcd}).keys(b.t.Context())
	b.must(err)
	return keys
}

const stranger = "stranger"

// allowed reports whether the stranger is able to list Nodes.
func (b *borrower) allowed() bool {
	b.t.Helper()
	review, err := b.kube.AuthorizationV1().SubjectAccessReviews().Create(b.t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: stranger, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}},
	}, metav1.CreateOptions{})
	b.must(err)
	return review.Status.Allowed
}

func (b *borrower) createService(namespace, name, ip string) error {
	_, err := b.kube.CoreV1().Services(namespace).Create(b.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	}, metav1.CreateOptions{})
	return err
}

// spoil creates, changes and deletes objects of each kind that kube-apiserver caches, and stops the
// servers.
func (b *borrower) spoil() {
	b.t.Helper()
	ctx, create := b.t.Context(), metav1.CreateOptions{}
	_, err := b.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, create)
	b.must(err)
	_, err = b.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, create)
	b.must(err)
	b.must(b.createService("left", "web", "10.0.0.77"))
	for n := range 300 { // more than one transaction
		_, err := b.kube.CoreV1().ConfigMaps("left").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("left-", n)}}, create)
		b.must(err)
	}
	_, err = b.kube.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "left"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.7.0.0/24"}},
	}, create)
	b.must(err)
	_, err = b.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "left"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: stranger}},
	}, create)
	b.must(err)
	b.must(b.kube.RbacV1().ClusterRoles().Delete(ctx, "edit", metav1.DeleteOptions{}))
	service, err := b.kube.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	b.must(err)
	service.Labels["left"], service.Spec.Ports[0].TargetPort.IntVal = "label", 7443
	_, err = b.kube.CoreV1().Services("default").Update(ctx, service, metav1.UpdateOptions{})
	b.must(err)

	etcd, err := b.cluster.EtcdClient()
	b.must(err)
	defer etcd.Close()
	_, err = etcd.Put(ctx, "/trivet/left", "by a test")
	b.must(err)
	b.must(errors.Join(b.cluster.StopAPIServer(), b.cluster.StopEtcd()))
}

func TestClean_TheNextBorrowerSeesNothingOfTheFirst(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- New(t.Errorf).Serve(ctx, listener) }() // a discarded control plane fails the test
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	first := borrowReal(t, dir)
	initial := first.keys()
	first.spoil()
	first.must(first.cluster.Stop())

	second := borrowReal(t, dir)
	if got, want := second.cluster.RESTConfig().Host, first.cluster.RESTConfig().Host; got != want {
		t.Fatalf("the second borrower has %s, want %s, which was given back", got, want)
	}
	if second.allowed() {
		t.Error("kube-apiserver still allows what a deleted ClusterRoleBinding allowed")
	}
	now := second.keys()
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if !bytes.Equal(now[key], initial[key]) {
			t.Errorf("%s is new or changed", key)
		}
	}
	if len(now) != len(initial) {
		t.Errorf("%d keys, want %d", len(now), len(initial))
	}
	nodes, err := second.kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	second.must(err)
	if len(nodes.Items) != 0 {
		t.Errorf("the cache of kube-apiserver has Node %s", nodes.Items[0].Name)
	}
	// The address and the port are free again, also for kube-apiserver's allocators.
	second.must(second.createService("default", "web", "10.0.0.77"))
}
