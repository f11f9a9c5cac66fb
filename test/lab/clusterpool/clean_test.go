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
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
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

// borrowReal returns a control plane that Stop gives back.
func borrowReal(t *testing.T, dir string) *borrower {
	t.Helper()
	conn, err := net.Dial("unix", Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := borrow(conn, nil)
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

// keys returns all of etcd, without the values that kube-apiserver renews.
func (b *borrower) keys() map[string][]byte {
	b.t.Helper()
	etcd, err := b.cluster.EtcdClient()
	b.must(err)
	defer etcd.Close()
	keys, err := (&cluster{etcd: etcd}).keys(b.t.Context())
	b.must(err)
	for key := range keys {
		if isRenewed(key) {
			keys[key] = nil
		}
	}
	return keys
}

const otherUser = "other-user"

// allowed reports whether otherUser is able to list Nodes.
func (b *borrower) allowed() bool {
	b.t.Helper()
	review, err := b.kube.AuthorizationV1().SubjectAccessReviews().Create(b.t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: otherUser, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}},
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

// change creates, changes and deletes objects of each kind that kube-apiserver caches, and keys of
// additional kube-apiservers, and stops the servers.
func (b *borrower) change() {
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
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: otherUser}},
	}, create)
	b.must(err)
	b.must(b.kube.RbacV1().ClusterRoles().Delete(ctx, "edit", metav1.DeleteOptions{}))
	service, err := b.kube.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	b.must(err)
	service.Labels["left"], service.Spec.Ports[0].TargetPort.IntVal = "label", 7443
	_, err = b.kube.CoreV1().Services("default").Update(ctx, service, metav1.UpdateOptions{})
	b.must(err)

	_, err = b.kube.CoordinationV1().Leases("kube-system").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "apiserver-left"}}, create)
	b.must(err)
	_, err = b.kube.CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "left"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"},
	}, create)
	b.must(err)

	etcd, err := b.cluster.EtcdClient()
	b.must(err)
	defer etcd.Close()
	for _, key := range []string{"/trivet/left", "/registry/masterleases/10.7.0.1", "/registry/peerserverleases/apiserver-left"} {
		_, err = etcd.Put(ctx, key, `{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"left"}}`)
		b.must(err)
	}
	b.must(errors.Join(b.cluster.StopAPIServer(), b.cluster.StopEtcd()))
}

// hasOne reports whether a control plane was given back.
func (p *Pool) hasOne() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cleaning+len(p.idle) > 0
}

func TestClean_TheNextBorrowerSeesNothingOfTheFirst(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	pool := New(t.Errorf) // a discarded control plane fails the test
	go func() { served <- pool.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	first := borrowReal(t, dir)
	initial := first.keys()
	first.change()
	first.must(first.cluster.Stop())
	for !pool.hasOne() {
		time.Sleep(time.Millisecond)
	}

	second := borrowReal(t, dir)
	if got, want := second.cluster.RESTConfig().Host, first.cluster.RESTConfig().Host; got != want {
		t.Fatalf("the second borrower has %s, want %s, which was given back", got, want)
	}
	if second.allowed() {
		t.Error("kube-apiserver still allows what a deleted ClusterRoleBinding allowed")
	}
	now := second.keys()
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if value, found := initial[key]; !found || !bytes.Equal(now[key], value) {
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
