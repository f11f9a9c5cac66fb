package audit_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// allocationTarget is how soon an address that is in use and free is allocated again: one second,
// and what a loaded machine adds.
const allocationTarget = 3 * time.Second

// disturbedReplica is a replica behind a proxy before kube-apiserver, and whose findings and
// repairs go through a relay before etcd. Its term does not.
type disturbedReplica struct {
	*replica
	kube *faultproxy.KubeProxy
	etcd *faultproxy.Relay
}

func startDisturbedReplica(t *testing.T, address string, options ...func(*bootstrapsvc.Config)) *disturbedReplica {
	t.Helper()
	d := &disturbedReplica{
		kube: faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig()),
		etcd: faultproxy.NewRelay(t, strings.TrimPrefix(testkit.Cluster(t).EtcdEndpoints()[0], "https://")),
	}
	relayed := relayedEtcd(t, d.etcd)
	t.Cleanup(func() { _ = relayed.Close() })
	d.replica = start(t, bootstraptest.Options{
		Address: address, Kube: d.kube.RESTConfig(), Etcd: relayed, Loops: []string{"allocation-audit"},
	}, options...)
	audited(t, d.replica)
	return d
}

// relayedEtcd returns a client of etcd behind a relay.
func relayedEtcd(t *testing.T, relay *faultproxy.Relay) *clientv3.Client {
	t.Helper()
	ca, cert, key := testkit.Cluster(t).EtcdFiles()
	files := transport.TLSInfo{TrustedCAFile: ca, CertFile: cert, KeyFile: key}
	config, err := files.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + relay.Addr()}, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// clusterIPServices creates Services and returns them, the lowest address first.
func clusterIPServices(t *testing.T, kube kubernetes.Interface, count int) []*corev1.Service {
	t.Helper()
	namespace := testkit.Namespace(t, kube)
	var created []*corev1.Service
	for i := range count {
		service, err := kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("audited-", i)},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created = append(created, service)
	}
	slices.SortFunc(created, func(a, b *corev1.Service) int { return strings.Compare(a.Spec.ClusterIP, b.Spec.ClusterIP) })
	return created
}

// wantAllocatedSoon wants each address to be allocated again within the target.
func wantAllocatedSoon(t *testing.T, kube kubernetes.Interface, since time.Time, services ...*corev1.Service) {
	t.Helper()
	for _, service := range services {
		address := service.Spec.ClusterIP
		testkit.Eventually(t, time.Minute, func() error {
			_, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
			return err
		})
		took := time.Since(since)
		t.Logf("%s is allocated again after %s", address, took.Round(time.Millisecond))
		if took > allocationTarget {
			t.Errorf("%s is in use and was free for %s, want at most %s", address, took.Round(time.Millisecond), allocationTarget)
		}
	}
}

// ipAddressCreates selects the creates of one IPAddress.
func ipAddressCreates() []admissionv1.NamedRuleWithOperations {
	return []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{"networking.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"ipaddresses"}},
	}}}
}

// refuseCreate makes kube-apiserver refuse the create of one IPAddress, by a policy.
func refuseCreate(t *testing.T, kube kubernetes.Interface, address string) {
	t.Helper()
	name := "refuse-" + strings.ReplaceAll(address, ".", "-")
	fail := admissionv1.Fail
	policies, bindings := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(), kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	t.Cleanup(func() {
		_ = bindings.Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = policies.Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	_, err := policies.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: ipAddressCreates()},
			MatchConditions:  []admissionv1.MatchCondition{{Name: "one-address", Expression: fmt.Sprintf("object.metadata.name == '%s'", address)}},
			Validations:      []admissionv1.Validation{{Expression: "false", Message: "this address is refused"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = bindings.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		if err := dryRunCreate(t.Context(), kube, address); err == nil || apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("the policy is not in force yet: %v", err)
		}
		return nil
	})
}

// hangCreate makes the create of one IPAddress wait for a webhook that does not answer.
func hangCreate(t *testing.T, kube kubernetes.Interface, address string) {
	t.Helper()
	ended := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	}))
	name := "hang-" + strings.ReplaceAll(address, ".", "-")
	hooks := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	t.Cleanup(func() {
		_ = hooks.Delete(context.Background(), name, metav1.DeleteOptions{})
		close(ended)
		server.Close()
	})
	fail, none, seconds, url := admissionv1.Fail, admissionv1.SideEffectClassNone, int32(10), server.URL
	_, err := hooks.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "hang.example.com", FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules:           []admissionv1.RuleWithOperations{ipAddressCreates()[0].RuleWithOperations},
			MatchConditions: []admissionv1.MatchCondition{{Name: "one-address", Expression: fmt.Sprintf("object.metadata.name == '%s'", address)}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := dryRunCreate(ctx, kube, address); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("the webhook is not in force yet: %v", err)
		}
		return nil
	})
}

func dryRunCreate(ctx context.Context, kube kubernetes.Interface, address string) error {
	_, err := kube.NetworkingV1().IPAddresses().Create(ctx, ipAddress(address, "default", "kubernetes"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func ipAddress(address, namespace, parent string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: address, Labels: map[string]string{
			networkingv1.LabelManagedBy: "ipallocator.k8s.io", networkingv1.LabelIPAddressFamily: "IPv4",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: parent}},
	}
}

// One address cannot be created: kube-apiserver refuses it, or waits for a webhook that does not
// answer. Every other address in use is allocated within the target, those that are lost with it
// and those that are lost while it is tried again.
func TestAuditFaults_AddressThatCannotBeCreatedDelaysNoOther(t *testing.T) {
	for name, obstruct := range map[string]func(*testing.T, kubernetes.Interface, string){"refused": refuseCreate, "hangs": hangCreate} {
		t.Run(name, func(t *testing.T) {
			kube := testkit.Kube(t)
			services := clusterIPServices(t, kube, 5)
			startDisturbedReplica(t, "10.99.30.1")
			obstruct(t, kube, services[0].Spec.ClusterIP)
			begun := time.Now()
			for _, service := range services[:3] {
				deleteAddress(t, service.Spec.ClusterIP)
			}
			wantAllocatedSoon(t, kube, begun, services[1:3]...)
			for _, service := range services[3:] {
				time.Sleep(700 * time.Millisecond) // in the middle of another attempt
				begun = time.Now()
				deleteAddress(t, service.Spec.ClusterIP)
				wantAllocatedSoon(t, kube, begun, service)
			}
		})
	}
}

// freeTime measures for how long an IPAddress does not exist, until stop is called.
func freeTime(t *testing.T, kube kubernetes.Interface, address string) (stop func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var measuring sync.WaitGroup
	var total time.Duration
	measuring.Go(func() {
		var since time.Time
		for ctx.Err() == nil {
			_, err := kube.NetworkingV1().IPAddresses().Get(ctx, address, metav1.GetOptions{})
			switch now := time.Now(); {
			case apierrors.IsNotFound(err) && since.IsZero():
				since = now
			case err == nil && !since.IsZero():
				total, since = total+now.Sub(since), time.Time{}
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		if !since.IsZero() {
			total += time.Since(since)
		}
	})
	return func() time.Duration {
		cancel()
		measuring.Wait()
		return total
	}
}

// An address has the wrong parent. It is replaced while etcd, which has the repairs, answers late
// or not at all, and while kube-apiserver refuses the first create. The address is in use and must
// not stay free.
func TestAuditFaults_ReplacedAddressIsFreeForOneRequest(t *testing.T) {
	const most = time.Second
	for name, disturb := range map[string]func(d *disturbedReplica, address string) (end func()){
		"etcd is slow": func(d *disturbedReplica, _ string) func() {
			d.etcd.SetDelay(700 * time.Millisecond)
			return func() { d.etcd.SetDelay(0) }
		},
		"etcd is cut off and a create is refused": func(d *disturbedReplica, address string) func() {
			var deleted, refused atomic.Bool
			stop := d.kube.Refuse(func(r faultproxy.Request) bool {
				if r.Resource != "ipaddresses" {
					return false
				}
				if r.Verb == "delete" && r.Name == address && deleted.CompareAndSwap(false, true) {
					d.etcd.BlockToTarget(true)
					d.etcd.BlockFromTarget(true)
				}
				return r.Verb == "create" && deleted.Load() && refused.CompareAndSwap(false, true)
			}, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			return func() {
				stop()
				d.etcd.BlockToTarget(false)
				d.etcd.BlockFromTarget(false)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			kube := testkit.Kube(t)
			services := clusterIPServices(t, kube, 2)
			d := startDisturbedReplica(t, "10.99.31.1")
			address, other := services[0].Spec.ClusterIP, services[1].Name
			// kube-apiserver deletes such an object at once, unless its parent is older; then after
			// five seconds.
			time.Sleep(time.Until(services[1].CreationTimestamp.Add(2100 * time.Millisecond)))
			end := disturb(d, address)
			deleteAddress(t, address)
			if _, err := kube.NetworkingV1().IPAddresses().Create(t.Context(), ipAddress(address, services[1].Namespace, other), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			stop := freeTime(t, kube, address)
			limit := time.Now().Add(12 * time.Second)
			for time.Now().Before(limit) {
				got, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
				if err == nil && got.Spec.ParentRef.Name == services[0].Name {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			end()
			wantParent(t, kube, address, services[0].Name)
			free := stop()
			t.Logf("%s was free for %s", address, free.Round(time.Millisecond))
			if free > most {
				t.Errorf("%s is in use and was free for %s, want at most %s", address, free.Round(time.Millisecond), most)
			}
		})
	}
}

func wantParent(t *testing.T, kube kubernetes.Interface, address, parent string) {
	t.Helper()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		got, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
		if err == nil && got.Spec.ParentRef.Name != parent {
			err = fmt.Errorf("%s has the parent %s, want %s", address, got.Spec.ParentRef.Name, parent)
		}
		return err
	})
}

// The watch of Services is late: it has shown one user of an address and not the rightful owner,
// which is the parent of the IPAddress. The address stays with its owner.
func TestAuditFaults_LateWatchOfServicesMovesNoAddress(t *testing.T) {
	kube := testkit.Kube(t)
	services := clusterIPServices(t, kube, 1)
	d := startDisturbedReplica(t, "10.99.32.1")
	seen, address := services[0], services[0].Spec.ClusterIP
	stop := d.kube.HoldEvents(faultproxy.Resource("services"))
	defer stop()
	owner := createOver(t, kube, seen, address)
	for _, write := range []string{"grace", "repair"} {
		time.Sleep(2 * time.Second) // a finding about a wrong parent opens after one second
		got, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
		if err != nil || got.Spec.ParentRef.Name != owner.Name {
			t.Fatalf("after the %s time: %s has the parent %v, %v, want its owner %s", write, address, got.Spec.ParentRef, err, owner.Name)
		}
	}
	stop()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		answer, err := d.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{Codes: []string{"DUPLICATE_OWNER"}})
		if err == nil && len(answer.GetFindings()) != 1 {
			err = fmt.Errorf("findings are %v, want the duplicate", answer.GetFindings())
		}
		return err
	})
	wantParent(t, kube, address, owner.Name)
}

// createOver creates a Service with an address that another one uses, so that kube-apiserver
// allocates it for the new one.
func createOver(t *testing.T, kube kubernetes.Interface, user *corev1.Service, address string) *corev1.Service {
	t.Helper()
	var created *corev1.Service
	testkit.Eventually(t, bootstraptest.Soon, func() (err error) {
		if err := kube.NetworkingV1().IPAddresses().Delete(t.Context(), address, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		created, err = kube.CoreV1().Services(user.Namespace).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "owner"},
			Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	})
	return created
}
