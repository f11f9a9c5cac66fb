package desired

import (
	"hash/fnv"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready reports whether the Pod's Ready condition is True.
func Ready(pod *corev1.Pod) bool {
	condition := ReadyCondition(pod)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// ReadyCondition returns the Pod's Ready condition, nil if it has none. The result points into pod.
func ReadyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Finished reports whether the Pod is Failed or Succeeded.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// The labels that name the revision of a Pod: Deployments set the first one, StatefulSets and
// DaemonSets the second.
const (
	templateHash = "pod-template-hash"
	revisionHash = "controller-revision-hash"
)

// AffinityOf returns the same number for Pods that are likely to come and go together: those of one
// revision of a workload, else those of one controller. It is 0 for a Pod of which neither is
// known. A collision of two numbers is rare and does no harm.
func AffinityOf(pod *corev1.Pod) uint32 {
	for _, label := range []string{templateHash, revisionHash} {
		if value := pod.Labels[label]; value != "" {
			return hashOf(value)
		}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return hashOf(string(owner.UID))
	}
	return 0
}

func hashOf(text string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(text))
	return hash.Sum32()
}

// Addresses returns the Pod's addresses of one family, canonical and joined as in Identity; empty
// when it has none. It leaves out the addresses that kube-apiserver refuses in slices: one such
// address, which a kubelet may report, would hold up the slice with all its other endpoints.
func Addresses(pod *corev1.Pod, family discoveryv1.AddressType) string {
	var all string
	for i := range pod.Status.PodIPs {
		address, of, ok := ParseAddress(pod.Status.PodIPs[i].IP)
		switch {
		case !ok || of != family || Special(address):
		case all == "":
			all = address
		default:
			all += "," + address
		}
	}
	return all
}

// Special reports whether kube-apiserver refuses a canonical address in slices: it is unspecified,
// a loopback address, or link-local.
func Special(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && (ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast())
}

// CanonicalAddress returns an IP address in its canonical form, and an invalid one as it is.
func CanonicalAddress(text string) string {
	if address, _, ok := ParseAddress(text); ok {
		return address
	}
	return text
}

// FamilyOf returns the family of an IP address; false for an invalid one.
func FamilyOf(text string) (discoveryv1.AddressType, bool) {
	_, family, ok := ParseAddress(text)
	return family, ok
}

// ParseAddress returns an IP address in its canonical form, and its family. It accepts what
// kube-apiservers have accepted: leading zeros, and IPv4 mapped into IPv6, which means the IPv4
// address. ok is false for an invalid address and for one with a zone.
func ParseAddress(text string) (address string, family discoveryv1.AddressType, ok bool) {
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
	return text, family, true // without an allocation
}

// withoutLeadingZeros removes the leading zeros of every number in an address.
func withoutLeadingZeros(text string) string {
	separates := func(c byte) bool { return c == '.' || c == ':' }
	trimmed := make([]byte, 0, len(text))
	for i := range len(text) {
		begins := len(trimmed) == 0 || separates(trimmed[len(trimmed)-1])
		ends := i+1 == len(text) || separates(text[i+1])
		if text[i] == '0' && begins && !ends {
			continue
		}
		trimmed = append(trimmed, text[i])
	}
	return string(trimmed)
}

// Families returns the address families that a Service is served in, IPv4 first. A Service without
// spec.ipFamilies, from a kube-apiserver without the field, is served in the family of its cluster
// IP, and in both families when it has none.
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
	_, family, _ := ParseAddress(service.Spec.ClusterIP)
	return family != discoveryv1.AddressTypeIPv6, family == discoveryv1.AddressTypeIPv6
}

// Headless reports whether the Service has no cluster IP.
func Headless(service *corev1.Service) bool {
	return service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone
}
