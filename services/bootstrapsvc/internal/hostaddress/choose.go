package hostaddress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Family narrows the choice to one address family.
type Family int

const (
	// Any takes IPv4 where an interface has both.
	Any Family = iota
	// IPv4 takes nothing else.
	IPv4
	// IPv6 takes nothing else.
	IPv6
)

// FamilyOf is the family of an address.
func FamilyOf(address netip.Addr) Family {
	if address.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	default:
		return "IP"
	}
}

// Interface is a network interface as it was when the snapshot was taken.
type Interface struct {
	Name      string
	Up        bool
	Addresses []netip.Addr
	// DefaultRoute is whether a default route leads through it.
	DefaultRoute bool
}

// Routable says why pods on other machines could not reach an address, or nil if they could.
func Routable(address netip.Addr) error {
	switch {
	case !address.IsValid():
		return errors.New("is no IP address")
	case address.IsUnspecified():
		return errors.New("is the unspecified address")
	case address.IsLoopback():
		return errors.New("is a loopback address")
	case address.IsLinkLocalUnicast():
		return errors.New("is a link-local address")
	case !address.IsGlobalUnicast():
		return errors.New("is no unicast address")
	case address.Zone() != "":
		return errors.New("has a zone, which means something on this machine alone")
	default:
		return nil
	}
}

// Choose picks the address to advertise. serverHost is the host of the apiserver's URL, an address or a name.
func Choose(serverHost string, interfaces []Interface, family Family) (netip.Addr, error) {
	if address, err := netip.ParseAddr(serverHost); err == nil && fits(address, family) {
		return address.Unmap(), nil
	}
	for _, candidate := range byRoute(interfaces) {
		if address, found := firstOf(candidate, family); found {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf(
		"no network interface has a global unicast %s address; set --apiserver-advertise-address", family)
}

func fits(address netip.Addr, family Family) bool {
	return Routable(address.Unmap()) == nil && (family == Any || FamilyOf(address) == family)
}

// byRoute returns the interfaces that are up, those of a default route first and otherwise in their order.
func byRoute(interfaces []Interface) []Interface {
	up := slices.DeleteFunc(slices.Clone(interfaces), func(i Interface) bool { return !i.Up })
	slices.SortStableFunc(up, func(a, b Interface) int { return rank(a) - rank(b) })
	return up
}

func rank(i Interface) int {
	if i.DefaultRoute {
		return 0
	}
	return 1
}

func firstOf(i Interface, family Family) (netip.Addr, bool) {
	order := []Family{family}
	if family == Any {
		order = []Family{IPv4, IPv6}
	}
	for _, wanted := range order {
		for _, address := range i.Addresses {
			if fits(address, wanted) {
				return address.Unmap(), true
			}
		}
	}
	return netip.Addr{}, false
}
