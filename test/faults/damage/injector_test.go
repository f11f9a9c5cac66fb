package damage

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// injector damages allocations and marks each injected event at the observer.
type injector struct {
	*testing.T
	kube         kubernetes.Interface
	etcd         *clientv3.Client
	namespace    string
	observer     *observer
	made         int
	injectedKeys []string // keys that the API refuses to delete
	leaked       []int32  // ports whose bits were set
}

// newInjector returns an injector with its own namespace. The test's cleanup removes all injected
// objects.
func newInjector(t *testing.T) *injector {
	t.Helper()
	kube := testkit.Kube(t)
	inj := &injector{T: t, kube: kube, etcd: testkit.Etcd(t), namespace: testkit.Namespace(t, kube), observer: watchEtcd(t)}
	t.Cleanup(inj.cleanUp)
	return inj
}

// cleanUp deletes what the API refuses to delete.
func (inj *injector) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	for _, key := range inj.injectedKeys {
		if _, err := inj.etcd.Delete(ctx, key); err != nil {
			inj.Errorf("delete %s: %v", key, err)
		}
	}
	for _, port := range inj.leaked {
		if err := inj.writePortBit(ctx, port, 0); err != nil {
			inj.Error(err)
		}
	}
	if err := inj.freeUnused(ctx); err != nil {
		inj.Error(err)
	}
}

// freeUnused frees what a repair has allocated for a Service that was deleted at the same moment:
// the next test would find it.
func (inj *injector) freeUnused(ctx context.Context) error {
	var errs []error
	for _, subject := range inj.observer.unused() {
		if port, err := strconv.ParseInt(subject, 10, 32); err == nil {
			errs = append(errs, inj.writePortBit(ctx, int32(port), 0))
		} else if err := inj.kube.NetworkingV1().IPAddresses().Delete(ctx, subject, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// createService creates a valid Service through the API.
func (inj *injector) createService(kind int) *corev1.Service {
	inj.Helper()
	inj.made++
	service, err := inj.kube.CoreV1().Services(inj.namespace).Create(inj.Context(), serviceOfKind(fmt.Sprintf("service-%d", inj.made), kind), metav1.CreateOptions{})
	if err != nil {
		inj.Fatal(err)
	}
	return service
}

// Kinds of serviceOfKind.
const (
	plain        = 0
	withPorts    = 1
	balanced     = 3
	twoProtocols = 4
)

// hasAddress reports whether an IPAddress exists.
func (inj *injector) hasAddress(address string) bool {
	inj.Helper()
	_, err := inj.kube.NetworkingV1().IPAddresses().Get(inj.Context(), address, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		inj.Fatal(err)
	}
	return err == nil
}

// deleteAddress deletes an IPAddress through the API.
func (inj *injector) deleteAddress(address string) {
	inj.Helper()
	inj.observer.markInjected(oracle.Free, address)
	if err := inj.kube.NetworkingV1().IPAddresses().Delete(inj.Context(), address, metav1.DeleteOptions{}); err != nil {
		inj.Fatal(err)
	}
}

// deleteAddressInEtcd deletes an IPAddress in etcd.
func (inj *injector) deleteAddressInEtcd(address string) {
	inj.Helper()
	inj.observer.markInjected(oracle.Free, address)
	if answer, err := inj.etcd.Delete(inj.Context(), addressKey(address)); err != nil || answer.Deleted != 1 {
		inj.Fatalf("delete %s: %v, %d keys", address, err, answer.Deleted)
	}
}

// setPortBit sets or clears the bit of a port and keeps concurrent changes of kube-apiserver.
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
	return errors.New("1000 conflicts with writes of kube-apiserver")
}

// freePort returns an unused port of the lower band, from which the allocator takes ports last.
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

// freeAddress returns an unused address of the lower band, from which the allocator takes addresses
// last.
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

// allocate creates an IPAddress through the API.
func (inj *injector) allocate(address string, parent *networkingv1.ParentReference) *networkingv1.IPAddress {
	inj.Helper()
	inj.observer.markInjected(oracle.Allocate, address)
	made, err := inj.kube.NetworkingV1().IPAddresses().Create(inj.Context(), ipAddress(address, parent), metav1.CreateOptions{})
	if err != nil {
		inj.Fatal(err)
	}
	inj.injectedKeys = append(inj.injectedKeys, addressKey(address))
	return made
}

// replaceAddress changes an IPAddress in etcd, because the API refuses to change its parent.
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

// duplicateService writes a copy of a Service into etcd with the same address and ports, as a wrong
// restore does.
func (inj *injector) duplicateService(original *corev1.Service, change func(*corev1.ServiceSpec), how encoding) *corev1.Service {
	inj.Helper()
	inj.made++
	duplicate := original.DeepCopy()
	duplicate.Name, duplicate.UID, duplicate.ResourceVersion = fmt.Sprintf("duplicate-%d", inj.made), uuid.NewUUID(), ""
	duplicate.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Second).Truncate(time.Second))
	duplicate.ManagedFields = nil
	change(&duplicate.Spec)
	inj.observer.markInjected(oracle.Use, duplicate.Namespace+"/"+duplicate.Name)
	if _, err := inj.etcd.Put(inj.Context(), serviceKey(duplicate), encode(inj, duplicate, how)); err != nil {
		inj.Fatal(err)
	}
	inj.injectedKeys = append(inj.injectedKeys, serviceKey(duplicate))
	return duplicate
}

// deleteService deletes a Service through the API. The events of the allocator that follow are
// marked as injected.
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
