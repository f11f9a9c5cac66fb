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
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

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
