package desired

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Ports gives the ports a Service has on a pod, ordered by name, and the names of
// container ports that the Service asks for and the pod does not have, in the
// order of the Service's ports.
func Ports(service *corev1.Service, pod *corev1.Pod) (ports []discoveryv1.EndpointPort, missing []string) {
	numbers := appendPortNumbers(nil, service, pod)
	for i, number := range numbers {
		if number == unresolved {
			missing = append(missing, service.Spec.Ports[i].TargetPort.StrVal)
		}
	}
	return endpointPorts(service, numbers), missing
}

// Addresses gives the pod's addresses of one family, canonical and joined by
// commas as in Identity; empty when it has none.
func Addresses(pod *corev1.Pod, family discoveryv1.AddressType) string {
	return addressesOf(pod, family)
}
