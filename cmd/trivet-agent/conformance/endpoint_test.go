package conformance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// pace is the time between two renewals of the Lease controller.
const pace = 100 * time.Millisecond

// patience bounds a wait on a busy machine.
const patience = time.Minute

// kubelet is upstream's Lease controller, set up as a kubelet does it.
type kubelet struct {
	failures atomic.Int32
	stop     func()
}

func (f *fixture) startKubelet() *kubelet {
	f.t.Helper()
	k := &kubelet{}
	own := func(l *coordinationv1.Lease) error {
		if len(l.OwnerReferences) == 0 {
			l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: f.node.UID}}
		}
		return nil
	}
	controller := lease.NewController(clock.RealClock{}, f.client(f.config()), node, 40, func() { k.failures.Add(1) },
		pace, node, corev1.NamespaceNodeLease, own)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.Run(ctx)
	}()
	k.stop = func() {
		cancel()
		<-done
	}
	f.t.Cleanup(k.stop)
	return k
}

func (f *fixture) lease() *coordinationv1.Lease {
	f.t.Helper()
	l, err := f.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(f.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

// renewed returns a condition: the real Lease is renewed so many times.
func (f *fixture) renewed(count int) func() error {
	last, seen := f.lease(), 0
	return func() error {
		now := f.lease()
		if now.Spec.RenewTime.Before(last.Spec.RenewTime) {
			return fmt.Errorf("renewTime fell from %v to %v", last.Spec.RenewTime, now.Spec.RenewTime)
		}
		if now.ResourceVersion != last.ResourceVersion {
			last, seen = now, seen+1
		}
		if seen < count {
			return fmt.Errorf("%d renewals, want %d", seen, count)
		}
		return nil
	}
}

// asLeasesvc renews the real Lease, as leasesvc does from time to time.
func (f *fixture) asLeasesvc() {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		l := f.lease()
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		l.Spec.LeaseDurationSeconds = new(int32(20))
		_, err := f.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(f.t.Context(), l, metav1.UpdateOptions{})
		return err
	})
}

func TestLeaseController_RenewsThroughTheEndpoint(t *testing.T) {
	f := newFixture(t)
	f.issue()
	f.start()
	k := f.startKubelet()
	await := func(condition func() error) {
		t.Helper()
		testkit.Eventually(t, patience, condition)
	}
	quiet := func(during func() error) {
		t.Helper()
		before := f.lease().ResourceVersion
		await(during)
		if after := f.lease().ResourceVersion; after != before {
			t.Errorf("the real Lease was written while leasesvc renews: %s, then %s", before, after)
		}
	}
	await(f.leasesvc.more(3))
	quiet(f.leasesvc.more(10))
	f.asLeasesvc()
	quiet(f.leasesvc.more(10))

	f.leasesvc.setGone(true)
	await(f.renewed(5))
	f.asLeasesvc()
	await(f.renewed(5))
	if l := f.lease(); *l.Spec.LeaseDurationSeconds != 40 || len(l.OwnerReferences) != 1 || *l.Spec.HolderIdentity != node {
		t.Errorf("the real Lease is %v", l)
	}
	f.leasesvc.setGone(false)
	await(f.leasesvc.more(3))
	quiet(f.leasesvc.more(10))

	// A restart of the agent: the kubelet holds what the former one answered.
	for _, gone := range []bool{false, true} {
		f.stop()
		f.asLeasesvc()
		f.leasesvc.setGone(gone)
		f.start()
		if gone {
			await(f.renewed(3))
		} else {
			await(f.leasesvc.more(3))
			quiet(f.leasesvc.more(10))
		}
	}
	f.leasesvc.setGone(false)
	await(f.leasesvc.more(3))

	// The Lease is deleted: the kubelet makes it anew once the endpoint reads it again.
	failures := k.failures.Load()
	if err := f.client(f.config()).CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(func() error {
		_, err := f.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), node, metav1.GetOptions{})
		return err
	})
	await(f.leasesvc.more(3))
	quiet(f.leasesvc.more(10))
	t.Logf("renewals that failed again and again: %d while the agent restarted, %d after the Lease was deleted", failures, k.failures.Load()-failures)
}

// A kube-apiserver with --goaway-chance closes connections so that clients spread over all servers.
// It does not process what arrives on such a connection, and a client sends that again.
func TestWrites_NoneFailsBecauseAConnectionEnds(t *testing.T) {
	const writers, each = 16, 100
	f := newFixture(t, "--goaway-chance=0.02") // the largest
	f.issue()
	f.start()
	client := f.client(f.config())
	var group sync.WaitGroup
	failures := make(chan error, writers*each)
	for writer := range writers {
		group.Go(func() {
			for number := range each {
				name := fmt.Sprintf("event-%d-%d", writer, number)
				_, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
					ObjectMeta: metav1.ObjectMeta{Name: name}, Reason: "Test", Message: strings.Repeat("x", 1000),
					InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node, Namespace: "default"},
				}, metav1.CreateOptions{})
				if err != nil {
					failures <- err
				}
			}
		})
	}
	group.Wait()
	close(failures)
	for err := range failures {
		t.Errorf("%d of %d writes failed, the first with: %v", len(failures)+1, writers*each, err)
		break
	}
}

// A kube-apiserver that has lost etcd keeps watches open and delivers nothing.
func TestWatch_MovesFromAKubeAPIServerWithoutEtcd(t *testing.T) {
	f := newFixture(t)
	var servers []*devcluster.Peer
	relays := map[string]*faultproxy.Relay{} // to etcd, by the address of the kube-apiserver
	for i := range 2 {
		relay := faultproxy.NewRelay(t, strings.TrimPrefix(f.cluster.EtcdEndpoints()[0], "https://"))
		server, err := f.cluster.AddAPIServer(t.Context(), devcluster.PeerConfig{
			AdvertiseAddress: fmt.Sprintf("192.0.2.%d", i+1), EtcdURL: "https://" + relay.Addr(),
		})
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, server)
		relays[strings.TrimPrefix(server.RESTConfig().Host, "https://")] = relay
	}
	f.writeKubeconfig = servers[0].WriteKubeconfig
	stored := fmt.Sprintf("[%q]", strings.TrimPrefix(servers[1].RESTConfig().Host, "https://"))
	if err := os.WriteFile(filepath.Join(f.dir, "apiservers.json"), []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	f.issue()
	f.start()
	config := f.config()
	config.Timeout = 0
	nodes := f.client(config).CoreV1().Nodes()
	watch := func() <-chan apiwatch.Event {
		t.Helper()
		w, err := nodes.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + node})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w.ResultChan()
	}
	events := watch()
	<-events // the Node as it is
	for _, server := range f.pool.Snapshot() {
		if server.Current {
			relays[server.Address].Disconnect(true)
		}
	}
	cut, ended := time.Now(), time.After(patience)
	for open := true; open; {
		select {
		case _, open = <-events:
		case <-ended:
			t.Fatalf("the watch is still open %v after its kube-apiserver lost etcd", patience)
		}
	}
	t.Logf("the watch ended %v after its kube-apiserver lost etcd", time.Since(cut).Round(time.Second))
	events = watch()
	<-events
	if _, err := f.admin.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"labels":{"changed":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case event := <-events:
		if changed, ok := event.Object.(*corev1.Node); !ok || changed.Labels["changed"] != "yes" {
			t.Errorf("the next watch delivers %v", event)
		}
	case <-time.After(patience):
		t.Error("the next watch delivers nothing")
	}
}

// TestCertificate_BootstrapAndRotation makes certificates as a kubelet does: with a bootstrap token
// before it has one, and then with the certificate itself.
func TestCertificate_BootstrapAndRotation(t *testing.T) {
	f := newFixture(t)
	f.start()
	config := f.config()
	config.CertFile, config.KeyFile, config.BearerToken = "", "", token
	bootstrap := f.client(config)
	if _, err := bootstrap.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("nodes with the bootstrap token: %v, want an error about authentication", err)
	}
	f.obtain(bootstrap)

	f.issue()
	testkit.Eventually(t, patience, func() error {
		if !f.pool.HasCertificate() {
			return errors.New("the agent has no certificate")
		}
		return nil
	})
	if _, _, err := f.request(bootstrap); !apierrors.IsUnauthorized(err) {
		t.Errorf("a request with the bootstrap token while there is a certificate: %v", err)
	}
	f.obtain(f.client(f.config()))
	// The node has its own rights and no others.
	if _, err := f.client(f.config()).CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := f.client(f.config()).CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secrets with the node's certificate: %v, want an error about rights", err)
	}
	// A valid certificate is deleted, so that the kubelet registers anew.
	if err := os.Remove(f.certificateFile()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error {
		_, err := bootstrap.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "none", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("a request with the bootstrap token after the certificate was deleted: %w", err)
		}
		return nil
	})
	f.obtain(bootstrap)
	f.issue()
	impersonating := f.config()
	impersonating.Impersonate = rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}}
	if _, err := f.client(impersonating).CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("impersonation with the node's certificate: %v, want an error about rights", err)
	}
}

// obtain requests a certificate and waits for it.
func (f *fixture) obtain(client kubernetes.Interface) {
	f.t.Helper()
	name, wait, err := f.request(client)
	if err != nil {
		f.t.Fatal(err)
	}
	obtained := make(chan error, 1)
	go func() { obtained <- wait() }()
	f.sign(name)
	if err := <-obtained; err != nil {
		f.t.Error(err)
	}
}

func (f *fixture) request(client kubernetes.Interface) (name string, wait func() error, err error) {
	f.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		f.t.Fatal(err)
	}
	name, uid, err := csr.RequestCertificate(client, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), "",
		certificatesv1.KubeAPIServerClientKubeletSignerName, nil,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, key)
	if err != nil {
		return "", nil, err
	}
	return name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		certificate, err := csr.WaitForCertificate(ctx, client, name, uid)
		if err == nil && len(certificate) == 0 {
			err = errors.New("the certificate is empty")
		}
		return err
	}, nil
}

// sign approves and signs a request, as kube-controller-manager does.
func (f *fixture) sign(name string) {
	f.t.Helper()
	requests := f.admin.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	if request, err = requests.UpdateApproval(f.t.Context(), name, request, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	certificate, _, err := f.cluster.ClientCertificate("system:node:"+node, "system:nodes")
	if err != nil {
		f.t.Fatal(err)
	}
	request.Status.Certificate = certificate
	if _, err := requests.UpdateStatus(f.t.Context(), request, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}
