package baseline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// FamiliesOf are the families of service ranges, in their order.
func FamiliesOf(ranges []netip.Prefix) []corev1.IPFamily {
	var families []corev1.IPFamily
	for _, serviceRange := range ranges {
		family := corev1.IPv6Protocol
		if serviceRange.Addr().Unmap().Is4() {
			family = corev1.IPv4Protocol
		}
		families = append(families, family)
	}
	return families
}

// planFamilies reports a Service that is to have two families and cannot get the second.
func planFamilies(want Service, existing *corev1.Service) []Change {
	if !asksForBoth(want, existing) || len(existing.Spec.ClusterIPs) != 1 || len(want.Families) != 1 {
		return nil
	}
	return []Change{report(existing.DeepCopy(), SingleFamily, fmt.Sprintf(
		"service default/kubernetes is to have both families and has only %s: the cluster's service range has no other",
		familiesText(existing.Spec.IPFamilies)))}
}

// asksForBoth leaves a headless Service out, which has no ClusterIP of either family; it is reported already.
func asksForBoth(want Service, existing *corev1.Service) bool {
	return want.DualStack && existing.Spec.ClusterIP != corev1.ClusterIPNone
}

// repairFamilies widens a Service to both families, and never narrows one: that would release an address that somebody may
// use. An apiserver gives the second ClusterIP when the policy allows it; to a Service whose policy allowed it before there
// was a second range, only when the family is asked for by name.
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
