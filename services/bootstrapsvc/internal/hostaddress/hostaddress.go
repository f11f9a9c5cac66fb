// Package hostaddress finds the address under which pods reach this machine's kube-apiserver.
//
// [Choose] prefers the address in the kube-apiserver's URL if other machines can reach it.
// Otherwise it takes the interfaces that are up, those of a default route first. It never returns
// an address that other machines cannot reach, because every pod would then connect to itself.
//
// apimachinery's ChooseHostInterface (pkg/util/net/interface.go) is not used: it ignores interfaces
// without a default route wherever one exists, and cannot be restricted to one address family.
package hostaddress

import (
	"errors"
	"fmt"
	"net/netip"
)

// Addresses are the addresses under which pods reach one kube-apiserver. An address that does not
// exist is the zero Addr.
type Addresses struct {
	// Primary is of the family of the primary service range, Secondary of the other family.
	Primary, Secondary netip.Addr
}

// All returns the addresses that exist, the primary one first.
func (a Addresses) All() []netip.Addr {
	var addresses []netip.Addr
	for _, address := range []netip.Addr{a.Primary, a.Secondary} {
		if address.IsValid() {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// Find chooses the primary address for a family from this machine's interfaces, and with dualStack
// a secondary one. A machine without an address of the second family has none. serverHost is as in
// [Choose].
func Find(serverHost string, family Family, dualStack bool) (Addresses, error) {
	interfaces, err := Interfaces()
	if err != nil {
		return Addresses{}, fmt.Errorf("%w; set --apiserver-advertise-address", err)
	}
	var found Addresses
	if found.Primary, err = Choose(serverHost, interfaces, family); err != nil || !dualStack {
		return found, err
	}
	other := IPv4
	if FamilyOf(found.Primary) == IPv4 {
		other = IPv6
	}
	if secondary, err := Choose("", interfaces, other); err == nil {
		found.Secondary = secondary
	}
	return found, nil
}

// Family restricts the choice to one address family.
type Family int

const (
	// Any prefers IPv4 on an interface that has both.
	Any Family = iota
	// IPv4 accepts IPv4 addresses only.
	IPv4
	// IPv6 accepts IPv6 addresses only.
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

// Interface is a network interface at the time of a snapshot.
type Interface struct {
	Name      string
	Up        bool
	Addresses []netip.Addr
	// DefaultRoute says that it is the interface of a default route.
	DefaultRoute bool
}

// Routable returns nil if pods on other machines can reach an address, and otherwise the reason.
func Routable(address netip.Addr) error {
	switch {
	case !address.IsValid():
		return errors.New("is not an IP address")
	case address.IsUnspecified():
		return errors.New("is the unspecified address")
	case address.IsLoopback():
		return errors.New("is a loopback address")
	case address.IsLinkLocalUnicast():
		return errors.New("is a link-local address")
	case !address.IsGlobalUnicast():
		return errors.New("is not a unicast address")
	case address.Zone() != "":
		return errors.New("has a zone, which is valid on this machine only")
	default:
		return nil
	}
}

// Choose returns the address to advertise. serverHost is the host in the kube-apiserver's URL, an
// address or a name.
func Choose(serverHost string, interfaces []Interface, family Family) (netip.Addr, error) {
	if address, err := netip.ParseAddr(serverHost); err == nil && fits(address, family) {
		return address.Unmap(), nil
	}
	for _, isDefault := range []bool{true, false} {
		for _, candidate := range interfaces {
			if !candidate.Up || candidate.DefaultRoute != isDefault {
				continue
			}
			if address, found := firstOf(candidate, family); found {
				return address, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf(
		"no network interface has a global unicast %s address; set --apiserver-advertise-address", family)
}

func fits(address netip.Addr, family Family) bool {
	return Routable(address.Unmap()) == nil && (family == Any || FamilyOf(address) == family)
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
