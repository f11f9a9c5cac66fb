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
	"github.com/trivet-dev/trivet/test/faults/damage/internal/custody"
)

// hand does damage on purpose, and tells the witness of it beforehand.
type hand struct {
	*testing.T
	kube      kubernetes.Interface
	etcd      *clientv3.Client
	namespace string
	witness   *witness
	made      int
	planted   []string // keys that only etcd knows how to delete
	leaked    []int32  // ports whose bits were set, and may be still
}

// newHand works in a namespace of its own, which is clean again after the test.
func newHand(t *testing.T) *hand {
	t.Helper()
	kube := testkit.Kube(t)
	h := &hand{T: t, kube: kube, etcd: testkit.Etcd(t), namespace: testkit.Namespace(t, kube), witness: watchEtcd(t)}
	t.Cleanup(h.cleanUp)
	return h
}

// cleanUp takes away what kube-apiserver would not delete, or would refuse to.
func (h *hand) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for _, key := range h.planted {
		if _, err := h.etcd.Delete(ctx, key); err != nil {
			h.Errorf("delete %s: %v", key, err)
		}
	}
	for _, port := range h.leaked {
		if err := h.writePort(ctx, port, 0); err != nil {
			h.Error(err)
		}
	}
}

// service makes a Service that is well, through the API.
func (h *hand) service(kind int) *corev1.Service {
	h.Helper()
	h.made++
	service, err := h.kube.CoreV1().Services(h.namespace).Create(h.Context(), serviceOfKind(fmt.Sprintf("steady-%d", h.made), kind), metav1.CreateOptions{})
	if err != nil {
		h.Fatal(err)
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
func (h *hand) loseAddress(address string) {
	h.Helper()
	h.witness.pardon(custody.Free, address)
	if err := h.kube.NetworkingV1().IPAddresses().Delete(h.Context(), address, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
}

// loseAddressInEtcd deletes the IPAddress where kube-apiserver keeps it.
func (h *hand) loseAddressInEtcd(address string) {
	h.Helper()
	h.witness.pardon(custody.Free, address)
	if answer, err := h.etcd.Delete(h.Context(), addressKey(address)); err != nil || answer.Deleted != 1 {
		h.Fatalf("delete %s: %v, %d keys", address, err, answer.Deleted)
	}
}

// setPort sets or clears the bit of a port, without undoing what kube-apiserver does meanwhile.
func (h *hand) setPort(port int32, allocated uint) {
	h.Helper()
	kind := custody.Free
	if allocated == 1 {
		kind = custody.Allocate
		h.leaked = append(h.leaked, port)
	}
	h.witness.pardon(kind, fmt.Sprint(port))
	if err := h.writePort(h.Context(), port, allocated); err != nil {
		h.Fatal(err)
	}
}

func (h *hand) writePort(ctx context.Context, port int32, allocated uint) error {
	for range 1000 {
		before, err := readBitmap(ctx, h.etcd)
		if err != nil {
			return err
		}
		before.object.Data = new(big.Int).SetBit(before.bits, int(port-firstPort), allocated).Bytes()
		answer, err := h.etcd.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(portsKey), "=", before.revision)).
			Then(clientv3.OpPut(portsKey, encode(h, before.object, asProtobuf))).Commit()
		if err != nil || answer.Succeeded {
			return err
		}
	}
	return errors.New("kube-apiserver was faster a thousand times")
}

// freePort is one that nobody has, from the band that the allocator takes from last.
func (h *hand) freePort() int32 {
	h.Helper()
	now, err := readBitmap(h.Context(), h.etcd)
	if err != nil {
		h.Fatal(err)
	}
	for port := int32(firstPort); port <= lastPort; port++ {
		if !now.has(port) && !h.witness.isHeld(fmt.Sprint(port)) {
			return port
		}
	}
	h.Fatal("no port is free")
	return 0
}

// freeAddress is one that nobody has, from the band that the allocator takes from last.
func (h *hand) freeAddress() string {
	h.Helper()
	for low := 20; low < 255; low++ {
		address := fmt.Sprintf("10.0.0.%d", low)
		_, err := h.kube.NetworkingV1().IPAddresses().Get(h.Context(), address, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return address
		}
	}
	h.Fatal("no address is free")
	return ""
}

// allocate makes an IPAddress for a parent, through the API.
func (h *hand) allocate(address string, parent *networkingv1.ParentReference) *networkingv1.IPAddress {
	h.Helper()
	made, err := h.kube.NetworkingV1().IPAddresses().Create(h.Context(), ipAddress(address, parent), metav1.CreateOptions{})
	if err != nil {
		h.Fatal(err)
	}
	h.planted = append(h.planted, addressKey(address))
	return made
}

// rename gives the IPAddress of a Service to another parent, by replacing it in etcd: through the API that cannot be done.
func (h *hand) rename(address string, change func(*networkingv1.IPAddress), how encoding) {
	h.Helper()
	now, err := h.kube.NetworkingV1().IPAddresses().Get(h.Context(), address, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	now.ResourceVersion = ""
	change(now)
	if _, err := h.etcd.Put(h.Context(), addressKey(address), encode(h, now, how)); err != nil {
		h.Fatal(err)
	}
}

// twin writes a Service into etcd that has what another one has, as a restore does that goes wrong.
func (h *hand) twin(of *corev1.Service, change func(*corev1.ServiceSpec), how encoding) *corev1.Service {
	h.Helper()
	h.made++
	twin := of.DeepCopy()
	twin.Name, twin.UID, twin.ResourceVersion = fmt.Sprintf("twin-%d", h.made), uuid.NewUUID(), ""
	twin.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Second).Truncate(time.Second))
	twin.ManagedFields = nil
	change(&twin.Spec)
	h.witness.pardon(custody.Use, twin.Namespace+"/"+twin.Name)
	if _, err := h.etcd.Put(h.Context(), serviceKey(twin), encode(h, twin, how)); err != nil {
		h.Fatal(err)
	}
	h.planted = append(h.planted, serviceKey(twin))
	return twin
}

// remove deletes a Service through the API. What the allocator frees by that is its own doing.
func (h *hand) remove(service *corev1.Service) {
	h.Helper()
	for _, subject := range subjectsOf(service) {
		h.witness.pardon(custody.Free, subject)
	}
	err := h.kube.CoreV1().Services(service.Namespace).Delete(h.Context(), service.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		h.Fatal(err)
	}
}
