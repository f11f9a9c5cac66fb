package apiservers

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// ports are the servers' own and those beside it.
func (r *roster) ports() []Port {
	return append([]Port{{Name: portName, Protocol: corev1.ProtocolTCP, Port: r.port}}, r.extra...)
}

func (r *roster) slicePorts() []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for _, port := range r.ports() {
		ports = append(ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &port.Port})
	}
	return ports
}

func (r *roster) endpointsPorts() []corev1.EndpointPort {
	var ports []corev1.EndpointPort
	for _, port := range r.ports() {
		ports = append(ports, corev1.EndpointPort{Name: port.Name, Protocol: port.Protocol, Port: port.Port})
	}
	return ports
}

func (r *roster) portsText() string {
	var texts []string
	for _, port := range r.ports() {
		texts = append(texts, fmt.Sprintf("%s %d/%s", port.Name, port.Port, port.Protocol))
	}
	return strings.Join(texts, ", ")
}
