package allocation

import (
	"math"
	"net/netip"
	"strings"
)

// parseAddress reads what kube-apiserver would take for an address: leading zeros of an IPv4 address count for nothing, and
// an IPv4 address written as an IPv6 one is an IPv4 address.
func parseAddress(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		address, err = netip.ParseAddr(withoutLeadingZeros(text))
	}
	if err != nil || address.Zone() != "" {
		return netip.Addr{}, false
	}
	return address.Unmap(), true
}

func withoutLeadingZeros(text string) string {
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return text
	}
	for i, part := range parts {
		trimmed := strings.TrimLeft(part, "0")
		if trimmed == "" && part != "" {
			trimmed = "0"
		}
		parts[i] = trimmed
	}
	return strings.Join(parts, ".")
}

// familyOf is the value of the label that the allocator gives an address.
func familyOf(address netip.Addr) string {
	if address.Is4() {
		return FamilyIPv4
	}
	return FamilyIPv6
}

// allocatable tells whether an allocator gives an address out of a prefix: never the network's own, nor IPv4's broadcast.
func allocatable(prefix netip.Prefix, address netip.Addr) bool {
	if !prefix.Contains(address) || prefix.Masked().Addr() == address {
		return false
	}
	return !address.Is4() || prefix.Contains(address.Next())
}

// capacityOf is how many addresses an allocator of IPAddress objects gives out of a prefix, at most the largest int64.
func capacityOf(prefix netip.Prefix) int64 {
	free := prefix.Addr().BitLen() - prefix.Bits()
	if free >= 63 {
		return math.MaxInt64
	}
	reserved := int64(1)
	if prefix.Addr().Is4() {
		reserved = 2
	}
	return max(int64(1)<<free-reserved, 0)
}
