package desired

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PortKey identifies a set of ports: two sets have the same key exactly when they have the same
// ports, in any order. The zero PortKey is the key of the empty set and of no set.
type PortKey string

// KeyOf returns the key of a set of ports.
func KeyOf(ports []discoveryv1.EndpointPort) PortKey {
	switch len(ports) {
	case 0:
		return ""
	case 1:
		return PortKey(appendPort(nil, &ports[0]))
	}
	encoded := make([]string, len(ports))
	for i := range ports {
		encoded[i] = string(appendPort(nil, &ports[i]))
	}
	slices.Sort(encoded)
	var key []byte
	for _, port := range encoded {
		key = append(key, port...)
	}
	return PortKey(key)
}

// appendPort encodes a port so that different ports, and different sequences of ports, have
// different encodings: a length precedes every string, and an absent string differs from an empty
// one.
func appendPort(to []byte, port *discoveryv1.EndpointPort) []byte {
	to = appendText(to, port.Name)
	to = appendText(to, (*string)(port.Protocol))
	to = appendText(to, port.AppProtocol)
	if port.Port == nil {
		return append(to, 0)
	}
	return binary.BigEndian.AppendUint32(append(to, 1), uint32(*port.Port))
}

func appendText(to []byte, text *string) []byte {
	if text == nil {
		return append(to, 0)
	}
	to = binary.AppendUvarint(to, uint64(len(*text))+1)
	return append(to, *text...)
}

// Ports returns the ports that a Service has on a Pod, ordered by name, and the names of container
// ports that the Pod does not have, in the order of the Service's ports.
func Ports(service *corev1.Service, pod *corev1.Pod) (ports []discoveryv1.EndpointPort, missing []string) {
	numbers := appendPortNumbers(nil, service, pod)
	for i, number := range numbers {
		if number == unresolved {
			missing = append(missing, service.Spec.Ports[i].TargetPort.StrVal)
		}
	}
	return endpointPorts(service, numbers), missing
}

// unresolved is the number of a port whose name no container of the Pod has.
const unresolved int32 = -1

// appendPortNumbers appends the number that each port of the Service has on the Pod.
func appendPortNumbers(to []int32, service *corev1.Service, pod *corev1.Pod) []int32 {
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		number := port.TargetPort.IntVal
		if port.TargetPort.Type == intstr.String {
			number = namedPort(pod, port.TargetPort.StrVal, port.Protocol)
		}
		to = append(to, number)
	}
	return to
}

// namedPort returns the number of a container port by its name and protocol. Containers precede
// sidecars; other init containers do not count.
func namedPort(pod *corev1.Pod, name string, protocol corev1.Protocol) int32 {
	for i := range pod.Spec.Containers {
		if number := portOf(&pod.Spec.Containers[i], name, protocol); number != unresolved {
			return number
		}
	}
	for i := range pod.Spec.InitContainers {
		if !Sidecar(&pod.Spec.InitContainers[i]) {
			continue
		}
		if number := portOf(&pod.Spec.InitContainers[i], name, protocol); number != unresolved {
			return number
		}
	}
	return unresolved
}

// Sidecar reports whether an init container runs as long as its Pod.
func Sidecar(container *corev1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func portOf(container *corev1.Container, name string, protocol corev1.Protocol) int32 {
	for i := range container.Ports {
		if container.Ports[i].Name == name && container.Ports[i].Protocol == protocol {
			return container.Ports[i].ContainerPort
		}
	}
	return unresolved
}

// endpointPorts returns the Service's ports with their numbers, without the unresolved ones,
// ordered by name, protocol and number. The result is never nil: the API distinguishes an absent
// list from an empty one, which means no ports.
func endpointPorts(service *corev1.Service, numbers []int32) []discoveryv1.EndpointPort {
	ports := make([]discoveryv1.EndpointPort, 0, len(numbers))
	for i, number := range numbers {
		if number == unresolved {
			continue
		}
		port := service.Spec.Ports[i]
		ports = append(ports, discoveryv1.EndpointPort{
			Name:        &port.Name,
			Protocol:    &port.Protocol,
			Port:        &number,
			AppProtocol: port.AppProtocol,
		})
	}
	slices.SortFunc(ports, comparePorts)
	return ports
}

func comparePorts(a, b discoveryv1.EndpointPort) int {
	return cmp.Or(
		cmp.Compare(*a.Name, *b.Name),
		cmp.Compare(*a.Protocol, *b.Protocol),
		cmp.Compare(*a.Port, *b.Port),
	)
}

// PortText returns a set of ports for people, for example "http 8080/TCP", and "none" for the empty
// set.
func PortText(ports []discoveryv1.EndpointPort) string {
	if len(ports) == 0 {
		return "none"
	}
	var text []byte
	for i := range ports {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = appendPortText(text, &ports[i])
	}
	return string(text)
}

func appendPortText(to []byte, port *discoveryv1.EndpointPort) []byte {
	if port.Name != nil && *port.Name != "" {
		to = append(append(to, *port.Name...), ' ')
	}
	if port.Port == nil {
		to = append(to, "any"...)
	} else {
		to = strconv.AppendInt(to, int64(*port.Port), 10)
	}
	if port.Protocol != nil {
		to = append(append(to, '/'), *port.Protocol...)
	}
	return to
}
