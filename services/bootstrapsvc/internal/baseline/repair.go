package baseline

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// repair brings every owned field of service to what it must be and says what differed, each difference in one phrase.
func repair(service *corev1.Service, want Service) []string {
	fields := []func(*corev1.Service, Service) []string{
		repairLabels,
		repairType,
		repairClusterIP,
		repairFamilies,
		repairPorts,
		repairSelector,
		repairAffinity,
	}
	var differences []string
	for _, field := range fields {
		differences = append(differences, field(service, want)...)
	}
	return differences
}

func repairLabels(service *corev1.Service, _ Service) []string {
	var differences []string
	want := serviceLabels()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		has, found := service.Labels[key]
		if found && has == want[key] {
			continue
		}
		if service.Labels == nil {
			service.Labels = map[string]string{}
		}
		service.Labels[key] = want[key]
		differences = append(differences, fmt.Sprintf("label %s %q, want %q", key, has, want[key]))
	}
	return differences
}

// repairType also clears what only the type it leaves may carry; an apiserver refuses the update otherwise.
func repairType(service *corev1.Service, want Service) []string {
	has := service.Spec.Type
	if has == want.kind() {
		return nil
	}
	spec := &service.Spec
	spec.Type = want.kind()
	spec.ExternalName = ""
	spec.HealthCheckNodePort = 0
	spec.AllocateLoadBalancerNodePorts = nil
	spec.LoadBalancerClass = nil
	spec.LoadBalancerIP = ""
	spec.LoadBalancerSourceRanges = nil
	if want.NodePort == 0 {
		spec.ExternalTrafficPolicy = ""
	}
	return []string{fmt.Sprintf("type %s, want %s", has, want.kind())}
}

// repairClusterIP fills in a ClusterIP where there is none, as after a spell as an ExternalName service. Another
// address than the wanted one is left alone: the plan reports it.
func repairClusterIP(service *corev1.Service, want Service) []string {
	if service.Spec.ClusterIP != "" || !want.ClusterIP.IsValid() {
		return nil
	}
	service.Spec.ClusterIP = want.ClusterIP.String()
	service.Spec.ClusterIPs = nil
	return []string{"no clusterIP, want " + want.ClusterIP.String()}
}

func repairPorts(service *corev1.Service, want Service) []string {
	has := service.Spec.Ports
	wanted := want.ports(has)
	if reflect.DeepEqual(has, wanted) {
		return nil
	}
	service.Spec.Ports = wanted
	return []string{fmt.Sprintf("ports %s, want %s", portsText(has), portsText(wanted))}
}

func repairSelector(service *corev1.Service, _ Service) []string {
	if len(service.Spec.Selector) == 0 {
		return nil
	}
	service.Spec.Selector = nil
	return []string{"has a selector, want none: its endpoints are the apiservers"}
}

func repairAffinity(service *corev1.Service, _ Service) []string {
	has := service.Spec.SessionAffinity
	if has == corev1.ServiceAffinityNone {
		return nil
	}
	service.Spec.SessionAffinity = corev1.ServiceAffinityNone
	service.Spec.SessionAffinityConfig = nil
	return []string{fmt.Sprintf("sessionAffinity %s, want %s", has, corev1.ServiceAffinityNone)}
}

// portsText writes ports as "https 443/TCP→6443", and ":30443" after it where there is a node port.
func portsText(ports []corev1.ServicePort) string {
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		text := fmt.Sprintf("%s %d/%s→%s", port.Name, port.Port, port.Protocol, port.TargetPort.String())
		if port.NodePort != 0 {
			text += ":" + strconv.Itoa(int(port.NodePort))
		}
		texts = append(texts, text)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
