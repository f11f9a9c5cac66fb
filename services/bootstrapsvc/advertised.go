package bootstrapsvc

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// advertised are the addresses under which pods reach one kube-apiserver; the zero Addr where there is none.
type advertised struct{ primary, secondary netip.Addr }

// all are those that there are, the primary one first.
func (a advertised) all() []netip.Addr {
	var addresses []netip.Addr
	for _, address := range []netip.Addr{a.primary, a.secondary} {
		if address.IsValid() {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// advertisedAddresses are those that were given, if any were.
func (c *Config) advertisedAddresses() (advertised, error) {
	if c.AdvertiseAddress == "" {
		return advertised{}, nil
	}
	first, second, isTwo := strings.Cut(c.AdvertiseAddress, ",")
	primary, err := parseAdvertised(first)
	if err != nil || !isTwo {
		return advertised{primary: primary}, err
	}
	secondary, err := parseAdvertised(second)
	switch {
	case err != nil:
		return advertised{}, err
	case !c.DualStackEndpoints:
		return advertised{}, errors.New("has two addresses, which means something only with --dual-stack-endpoints")
	case hostaddress.FamilyOf(primary) == hostaddress.FamilyOf(secondary):
		return advertised{}, fmt.Errorf("%s and %s are of one family, want one of each", primary, secondary)
	}
	return advertised{primary: primary, secondary: secondary}, nil
}

func parseAdvertised(text string) (netip.Addr, error) {
	given, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	if err := hostaddress.Routable(given.Unmap()); err != nil {
		return netip.Addr{}, fmt.Errorf("%s %w; pods on other machines could not reach it", given, err)
	}
	return given.Unmap(), nil
}

// addressesOf are those that were given or, if none were, that the machine has.
func addressesOf(cfg Config, server *url.URL) (advertised, error) {
	serviceRange, err := cfg.serviceRange()
	if err != nil {
		return advertised{}, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	found, err := cfg.advertisedAddresses()
	if err != nil {
		return advertised{}, fmt.Errorf("--apiserver-advertise-address: %w", err)
	}
	if !found.primary.IsValid() {
		if found, err = ownAddresses(cfg, server, serviceRange); err != nil {
			return advertised{}, err
		}
	}
	if err := checkFamily(found.primary, serviceRange); err != nil {
		return advertised{}, fmt.Errorf("--apiserver-advertise-address: %w", err)
	}
	return found, nil
}

// ownAddresses looks at the machine's interfaces. A machine without an address of the second family has but one.
func ownAddresses(cfg Config, server *url.URL, serviceRange netip.Prefix) (advertised, error) {
	interfaces, err := hostaddress.Interfaces()
	if err != nil {
		return advertised{}, fmt.Errorf("%w; set --apiserver-advertise-address", err)
	}
	family := hostaddress.Any
	if serviceRange.IsValid() {
		family = hostaddress.FamilyOf(serviceRange.Addr())
	}
	var found advertised
	if found.primary, err = hostaddress.Choose(server.Hostname(), interfaces, family); err != nil || !cfg.DualStackEndpoints {
		return found, err
	}
	other := hostaddress.IPv4
	if hostaddress.FamilyOf(found.primary) == hostaddress.IPv4 {
		other = hostaddress.IPv6
	}
	if secondary, err := hostaddress.Choose("", interfaces, other); err == nil {
		found.secondary = secondary
	}
	return found, nil
}
