package desired

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// canonicalAddress gives an IP address in its canonical text and its family. It
// takes what the kube-apiserver has taken over the years: leading zeros in
// dotted decimals and IPv4 mapped into IPv6 both mean the IPv4 address. ok is
// false for a text that is no address, and for one with a zone.
func canonicalAddress(text string) (address string, family discoveryv1.AddressType, ok bool) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		ip, err = netip.ParseAddr(withoutLeadingZeros(text))
	}
	if err != nil || ip.Zone() != "" {
		return "", "", false
	}
	ip = ip.Unmap()
	family = discoveryv1.AddressTypeIPv6
	if ip.Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	var buffer [64]byte
	if canonical := ip.AppendTo(buffer[:0]); string(canonical) != text {
		return string(canonical), family, true
	}
	return text, family, true
}

func withoutLeadingZeros(text string) string {
	octets := strings.Split(text, ".")
	for i, octet := range octets {
		if trimmed := strings.TrimLeft(octet, "0"); trimmed != "" {
			octets[i] = trimmed
		} else if octet != "" {
			octets[i] = "0"
		}
	}
	return strings.Join(octets, ".")
}

// addressesOf gives the pod's addresses of one family, canonical and joined as
// in Identity; empty when it has none.
func addressesOf(pod *corev1.Pod, family discoveryv1.AddressType) string {
	var all string
	for i := range pod.Status.PodIPs {
		address, of, ok := canonicalAddress(pod.Status.PodIPs[i].IP)
		switch {
		case !ok || of != family:
		case all == "":
			all = address
		default:
			all += "," + address
		}
	}
	return all
}

// Families gives the address families a Service is served in, IPv4 first. A
// Service without spec.ipFamilies, written by an apiserver older than the
// field, is served in the family of its cluster IP, and in both when it has none.
func Families(service *corev1.Service) []discoveryv1.AddressType {
	var v4, v6 bool
	for _, family := range service.Spec.IPFamilies {
		v4 = v4 || family == corev1.IPv4Protocol
		v6 = v6 || family == corev1.IPv6Protocol
	}
	if !v4 && !v6 {
		v4, v6 = familiesOfClusterIP(service)
	}
	families := make([]discoveryv1.AddressType, 0, 2)
	if v4 {
		families = append(families, discoveryv1.AddressTypeIPv4)
	}
	if v6 {
		families = append(families, discoveryv1.AddressTypeIPv6)
	}
	return families
}

func familiesOfClusterIP(service *corev1.Service) (v4, v6 bool) {
	if Headless(service) {
		return true, true
	}
	_, family, _ := canonicalAddress(service.Spec.ClusterIP)
	return family != discoveryv1.AddressTypeIPv6, family == discoveryv1.AddressTypeIPv6
}

// Headless reports whether the Service has no cluster IP.
func Headless(service *corev1.Service) bool {
	return service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone
}
