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

// PortKey stands for a set of ports: two sets have the same key exactly when
// they hold the same ports, in whatever order. The zero PortKey is the empty
// set, which slices without ports and slices with an empty list share.
type PortKey string

// KeyOf gives the key of a set of ports. It does not change them.
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

// appendPort encodes a port so that no two different ports, and no two
// different sequences of ports, have the same encoding: every text goes after
// its length, and what is absent differs from what is empty.
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

// unresolved marks a port whose name no container of the pod has.
const unresolved int32 = -1

// appendPortNumbers appends the number each port of the Service has on the pod,
// unresolved where its name is unknown there.
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

// namedPort finds a port by name and protocol: in the containers first, then in
// those init containers that stay beside them.
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

// Sidecar reports whether an init container runs as long as its pod.
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

// endpointPorts renders the Service's ports with their numbers, leaving out the
// unresolved ones, ordered by name, protocol and number. It is never nil: the
// API tells an absent list from an empty one, and the empty one means no ports.
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

// PortText gives a set of ports for people, for example "http 8080/TCP"; "none"
// for the empty set.
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
