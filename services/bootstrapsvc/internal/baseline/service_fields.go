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

// repair sets every owned field of service to the wanted value. It returns each difference as one
// phrase.
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

// repairType also clears the fields that only the old type may have. Otherwise the kube-apiserver
// rejects the update.
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

// repairClusterIP sets a missing ClusterIP, such as that of a former ExternalName service. The plan
// reports another ClusterIP and does not change it.
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

// repairFamilies adds the second family and never removes one: that would release an address that
// may be in use. The kube-apiserver allocates the second ClusterIP if the policy allows it. If the
// policy allowed it before the second range existed, the family must also be named.
func repairFamilies(service *corev1.Service, want Service) []string {
	if !asksForBoth(want, service) {
		return nil
	}
	var differences []string
	if policy := service.Spec.IPFamilyPolicy; policy == nil || *policy == corev1.IPFamilyPolicySingleStack {
		prefer := corev1.IPFamilyPolicyPreferDualStack
		service.Spec.IPFamilyPolicy = &prefer
		differences = append(differences, fmt.Sprintf("ipFamilyPolicy %s, want %s", policyText(policy), prefer))
	}
	has := service.Spec.IPFamilies
	if len(has) == 1 && len(want.Families) == 2 && slices.Contains(want.Families, has[0]) {
		for _, family := range want.Families {
			if family != has[0] {
				service.Spec.IPFamilies = []corev1.IPFamily{has[0], family}
			}
		}
		differences = append(differences, fmt.Sprintf("ipFamilies %s, want %s", familiesText(has), familiesText(service.Spec.IPFamilies)))
	}
	return differences
}

func policyText(policy *corev1.IPFamilyPolicy) string {
	if policy == nil {
		return "not set"
	}
	return string(*policy)
}

func familiesText(families []corev1.IPFamily) string {
	texts := make([]string, 0, len(families))
	for _, family := range families {
		texts = append(texts, string(family))
	}
	return strings.Join(texts, ", ")
}
