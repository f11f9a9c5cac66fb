package replicas

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Names is a Source of addresses that an operator has named. A DNS name stands for all addresses to
// which it resolves.
type Names []string

// resolve is [net.Resolver.LookupNetIP].
var resolve = net.DefaultResolver.LookupNetIP

// String implements Source.
func (n Names) String() string { return "addresses " + strings.Join(n, ",") }

// Lookup implements Source. It fails only if no name has an address: one name that does not resolve
// does not hide the others.
func (n Names) Lookup(ctx context.Context) ([]string, error) {
	var found []string
	var problems []error
	for _, name := range n {
		addresses, err := lookupName(ctx, name)
		if err != nil {
			problems = append(problems, err)
		}
		found = append(found, addresses...)
	}
	if len(found) == 0 {
		return nil, errors.Join(problems...)
	}
	return found, nil
}

func lookupName(ctx context.Context, name string) ([]string, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", name, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []string{net.JoinHostPort(ip.String(), port)}, nil
	}
	ips, err := resolve(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve %q: %w", host, err)
	}
	var addresses []string
	for _, ip := range ips {
		addresses = append(addresses, net.JoinHostPort(ip.Unmap().String(), port))
	}
	return addresses, nil
}
