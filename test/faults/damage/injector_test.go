package damage

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
)

// hand does damage on purpose, and tells the witness of it beforehand.
type injector struct {
	*testing.T
	kube      kubernetes.Interface
	etcd      *clientv3.Client
	namespace string
	observer  *observer
	made      int
	planted   []string // keys that only etcd knows how to delete
	leaked    []int32  // ports whose bits were set, and may be still
}

// newHand works in a namespace of its own, which is clean again after the test.
func newInjector(t *testing.T) *injector {
	t.Helper()
	kube := testkit.Kube(t)
	inj := &injector{T: t, kube: kube, etcd: testkit.Etcd(t), namespace: testkit.Namespace(t, kube), observer: watchEtcd(t)}
	t.Cleanup(inj.cleanUp)
	return inj
}

// cleanUp takes away what kube-apiserver would not delete, or would refuse to.
func (inj *injector) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	for _, key := range inj.planted {
		if _, err := inj.etcd.Delete(ctx, key); err != nil {
			inj.Errorf("delete %s: %v", key, err)
		}
	}
	for _, port := range inj.leaked {
		if err := inj.writePortBit(ctx, port, 0); err != nil {
			inj.Error(err)
		}
	}
}

// service makes a Service that is well, through the API.
func (inj *injector) createService(kind int) *corev1.Service {
	inj.Helper()
	inj.made++
	service, err := inj.kube.CoreV1().Services(inj.namespace).Create(inj.Context(), serviceOfKind(fmt.Sprintf("steady-%d", inj.made), kind), metav1.CreateOptions{})
	if err != nil {
		inj.Fatal(err)
	}
	return service
}

// Kinds of Services, as serviceOfKind has them.
const (
	plain        = 0
	withPorts    = 1
	balanced     = 3
	twoProtocols = 4
)

// loseAddress deletes the IPAddress of a Service, as somebody with kubectl would.
func (inj *injector) deleteAddress(address string) {
	inj.Helper()
	inj.observer.markInjected(oracle.Free, address)
	if err := inj.kube.NetworkingV1().IPAddresses().Delete(inj.Context(), address, metav1.DeleteOptions{}); err != nil {
		inj.Fatal(err)
	}
}

// loseAddressInEtcd deletes the IPAddress where kube-apiserver keeps it.
func (inj *injector) deleteAddressInEtcd(address string) {
	inj.Helper()
	inj.observer.markInjected(oracle.Free, address)
	if answer, err := inj.etcd.Delete(inj.Context(), addressKey(address)); err != nil || answer.Deleted != 1 {
		inj.Fatalf("delete %s: %v, %d keys", address, err, answer.Deleted)
	}
}

// setPort sets or clears the bit of a port, without undoing what kube-apiserver does meanwhile.
func (inj *injector) setPortBit(port int32, allocated uint) {
	inj.Helper()
	kind := oracle.Free
	if allocated == 1 {
		kind = oracle.Allocate
		inj.leaked = append(inj.leaked, port)
	}
	inj.observer.markInjected(kind, fmt.Sprint(port))
	if err := inj.writePortBit(inj.Context(), port, allocated); err != nil {
		inj.Fatal(err)
	}
}

func (inj *injector) writePortBit(ctx context.Context, port int32, allocated uint) error {
	for range 1000 {
		before, err := readBitmap(ctx, inj.etcd)
		if err != nil {
			return err
		}
		before.object.Data = new(big.Int).SetBit(before.bits, int(port-firstPort), allocated).Bytes()
		answer, err := inj.etcd.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(portsKey), "=", before.revision)).
			Then(clientv3.OpPut(portsKey, encode(inj, before.object, asProtobuf))).Commit()
		if err != nil || answer.Succeeded {
			return err
		}
	}
	return errors.New("kube-apiserver was faster a thousand times")
}

// freePort is one that nobody has, from the band that the allocator takes from last.
func (inj *injector) freePort() int32 {
	inj.Helper()
	now, err := readBitmap(inj.Context(), inj.etcd)
	if err != nil {
		inj.Fatal(err)
	}
	for port := int32(firstPort); port <= lastPort; port++ {
		if !now.has(port) && !inj.observer.isAllocated(fmt.Sprint(port)) {
			return port
		}
	}
	inj.Fatal("no port is free")
	return 0
}

// freeAddress is one that nobody has, from the band that the allocator takes from last.
func (inj *injector) freeAddress() string {
	inj.Helper()
	for low := 20; low < 255; low++ {
		address := fmt.Sprintf("10.0.0.%d", low)
		_, err := inj.kube.NetworkingV1().IPAddresses().Get(inj.Context(), address, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return address
		}
	}
	inj.Fatal("no address is free")
	return ""
}

// allocate makes an IPAddress for a parent, through the API.
func (inj *injector) allocate(address string, parent *networkingv1.ParentReference) *networkingv1.IPAddress {
	inj.Helper()
	made, err := inj.kube.NetworkingV1().IPAddresses().Create(inj.Context(), ipAddress(address, parent), metav1.CreateOptions{})
	if err != nil {
		inj.Fatal(err)
	}
	inj.planted = append(inj.planted, addressKey(address))
	return made
}

// rename gives the IPAddress of a Service to another parent, by replacing it in etcd: through the API that cannot be done.
func (inj *injector) replaceAddress(address string, change func(*networkingv1.IPAddress), how encoding) {
	inj.Helper()
	now, err := inj.kube.NetworkingV1().IPAddresses().Get(inj.Context(), address, metav1.GetOptions{})
	if err != nil {
		inj.Fatal(err)
	}
	now.ResourceVersion = ""
	change(now)
	if _, err := inj.etcd.Put(inj.Context(), addressKey(address), encode(inj, now, how)); err != nil {
		inj.Fatal(err)
	}
}

// twin writes a Service into etcd that has what another one has, as a restore does that goes wrong.
func (inj *injector) duplicateService(original *corev1.Service, change func(*corev1.ServiceSpec), how encoding) *corev1.Service {
	inj.Helper()
	inj.made++
	duplicate := original.DeepCopy()
	duplicate.Name, duplicate.UID, duplicate.ResourceVersion = fmt.Sprintf("twin-%d", inj.made), uuid.NewUUID(), ""
	duplicate.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Second).Truncate(time.Second))
	duplicate.ManagedFields = nil
	change(&duplicate.Spec)
	inj.observer.markInjected(oracle.Use, duplicate.Namespace+"/"+duplicate.Name)
	if _, err := inj.etcd.Put(inj.Context(), serviceKey(duplicate), encode(inj, duplicate, how)); err != nil {
		inj.Fatal(err)
	}
	inj.planted = append(inj.planted, serviceKey(duplicate))
	return duplicate
}

// remove deletes a Service through the API. What the allocator frees by that is its own doing.
func (inj *injector) deleteService(service *corev1.Service) {
	inj.Helper()
	for _, subject := range subjectsOf(service) {
		inj.observer.markInjected(oracle.Free, subject)
	}
	err := inj.kube.CoreV1().Services(service.Namespace).Delete(inj.Context(), service.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		inj.Fatal(err)
	}
}
