package mirroring

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// service makes a Service without a selector.
func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

func endpointsOf(name string, subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}, Subsets: subsets}
}

func subset(ports []corev1.EndpointPort, ready []corev1.EndpointAddress, notReady ...corev1.EndpointAddress) corev1.EndpointSubset {
	return corev1.EndpointSubset{Ports: ports, Addresses: ready, NotReadyAddresses: notReady}
}

func port(name string, number int32) corev1.EndpointPort {
	return corev1.EndpointPort{Name: name, Port: number, Protocol: corev1.ProtocolTCP}
}

// ports makes one port.
func ports(name string, number int32) []corev1.EndpointPort {
	return []corev1.EndpointPort{port(name, number)}
}

// app makes a port with an application protocol.
func app(name string, number int32, protocol string) corev1.EndpointPort {
	p := port(name, number)
	p.AppProtocol = &protocol
	return p
}

func address(ip string) corev1.EndpointAddress { return corev1.EndpointAddress{IP: ip} }

func addresses(ips ...string) []corev1.EndpointAddress {
	var all []corev1.EndpointAddress
	for _, ip := range ips {
		all = append(all, address(ip))
	}
	return all
}

// many makes count addresses that begin with 10.second.
func many(second, count int) []corev1.EndpointAddress {
	var all []corev1.EndpointAddress
	for i := range count {
		all = append(all, address(fmt.Sprintf("10.%d.%d.%d", second, i/250, i%250+1)))
	}
	return all
}

// manyV6 makes count addresses of the other family.
func manyV6(count int) []corev1.EndpointAddress {
	var all []corev1.EndpointAddress
	for i := range count {
		all = append(all, address(fmt.Sprintf("fd00::%x", i+1)))
	}
	return all
}

// pod makes an address of a Pod.
func pod(ip, name, uid string) corev1.EndpointAddress {
	return corev1.EndpointAddress{IP: ip, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name, UID: types.UID(uid)}}
}
