package damage

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// Keys of kube-apiserver in etcd, and the default range of node ports.
const (
	servicesPrefix  = "/registry/services/specs/"
	addressesPrefix = "/registry/ipaddresses/"
	portsKey        = "/registry/ranges/servicenodeports"

	firstPort, lastPort = 30000, 32767
)

func serviceKey(s *corev1.Service) string { return servicesPrefix + s.Namespace + "/" + s.Name }
func addressKey(address string) string    { return addressesPrefix + address }

// encoding is the encoding of a value in etcd. kube-apiserver writes protobuf, and also reads JSON.
type encoding int

const (
	asProtobuf encoding = iota
	asJSON
)

// encode encodes an object with upstream's codecs, which are independent of the code under test.
func encode(t testing.TB, object runtime.Object, how encoding) string {
	t.Helper()
	var serializer runtime.Serializer = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	if how == asJSON {
		serializer = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})
	}
	gvks, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	value, err := runtime.Encode(scheme.Codecs.EncoderForVersion(serializer, schema.GroupVersion{Group: gvks[0].Group, Version: gvks[0].Version}), object)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

func decode[T runtime.Object](value []byte) (object T, err error) {
	read, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return object, err
	}
	object, ok := read.(T)
	if !ok {
		return object, fmt.Errorf("value is a %T, want a %T", read, object)
	}
	return object, nil
}

// bitmap is the stored bitmap of node ports at one revision.
type bitmap struct {
	object   *corev1.RangeAllocation
	revision int64
	bits     *big.Int
}

func readBitmap(ctx context.Context, etcd *clientv3.Client) (bitmap, error) {
	answer, err := etcd.Get(ctx, portsKey)
	if err != nil {
		return bitmap{}, err
	}
	if len(answer.Kvs) == 0 {
		return bitmap{}, fmt.Errorf("%s does not exist", portsKey)
	}
	return parseBitmap(answer.Kvs[0].Value, answer.Kvs[0].ModRevision)
}

func parseBitmap(value []byte, revision int64) (bitmap, error) {
	object, err := decode[*corev1.RangeAllocation](value)
	if err != nil {
		return bitmap{}, err
	}
	return bitmap{object: object, revision: revision, bits: new(big.Int).SetBytes(object.Data)}, nil
}

func (b bitmap) has(port int32) bool { return b.bits.Bit(int(port-firstPort)) == 1 }

// subjectsOf returns the addresses and ports that a Service uses.
func subjectsOf(s *corev1.Service) []string {
	var subjects []string
	for _, ip := range s.Spec.ClusterIPs {
		if address, err := netip.ParseAddr(ip); err == nil && s.Spec.Type != corev1.ServiceTypeExternalName {
			subjects = append(subjects, address.String())
		}
	}
	ports := map[int32]bool{0: true}
	for _, port := range append(nodePortsOf(s), s.Spec.HealthCheckNodePort) {
		if !ports[port] { // One number with two protocols is one port.
			ports[port] = true
			subjects = append(subjects, fmt.Sprint(port))
		}
	}
	return subjects
}

func portsOfTwoProtocols(s *corev1.Service) []string {
	var twice []string
	seen := map[int32]bool{0: true}
	for _, port := range nodePortsOf(s) {
		if port != 0 && seen[port] {
			twice = append(twice, fmt.Sprint(port))
		}
		seen[port] = true
	}
	return twice
}

func nodePortsOf(s *corev1.Service) []int32 {
	var ports []int32
	for _, port := range s.Spec.Ports {
		ports = append(ports, port.NodePort)
	}
	return ports
}

// ipAddress returns an IPAddress with the fields that the allocator sets.
func ipAddress(address string, parent *networkingv1.ParentReference) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: address,
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io",
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: parent},
	}
}

func parentOf(s *corev1.Service) *networkingv1.ParentReference {
	return &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}
}
