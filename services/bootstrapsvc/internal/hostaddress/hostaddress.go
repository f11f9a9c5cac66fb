package hostaddress

import (
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
