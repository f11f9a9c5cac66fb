package apiserverscontroller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// resolveTimeout leaves time for the rest of a pass when DNS does not answer.
	resolveTimeout = 3 * time.Second
	// rememberedLookups is how many lookups of a name count. The address of a server that is gone
	// stays for as long, a minute.
	rememberedLookups = 6
	// lookupPeriod is how long the answers count as those of one lookup. Passes on request must not
	// push out the answers of the regular ones.
	lookupPeriod = endpointsPeriod / 2
)

// resolver resolves a name whose answers may have a part of its addresses each. It is safe for
// concurrent use.
type resolver struct {
	lookupIP func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu sync.Mutex // guards the fields below
	// remembers reports that the endpoints loop runs. Without its regular lookups, the last ones
	// may be hours old.
	remembers bool
	// lookups are the last ones that succeeded, the oldest first.
	lookups []lookup
}

// remember makes the last lookups count until the caller calls forget.
func (r *resolver) remember() (forget func()) {
	set := func(remembers bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.remembers, r.lookups = remembers, nil
	}
	set(true)
	return func() { set(false) }
}

// lookup has what was answered within lookupPeriod of its begin.
type lookup struct {
	begin     time.Time
	addresses []netip.Addr
}

// resolve looks a name up and returns the addresses that the last lookups answered. An error says
// nothing about addresses.
func (r *resolver) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addresses, err := r.lookupIP(ctx, "ip", name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot resolve static address %s: %w", name, err)
	case len(addresses) == 0:
		return nil, fmt.Errorf("static address %s resolves to no address", name)
	}
	for i, address := range addresses {
		addresses[i] = address.Unmap()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.remembers {
		return addresses, nil
	}
	now := time.Now()
	if last := len(r.lookups) - 1; last < 0 || now.Sub(r.lookups[last].begin) >= lookupPeriod {
		r.lookups = append(r.lookups, lookup{begin: now})
		r.lookups = r.lookups[max(0, len(r.lookups)-rememberedLookups):]
	}
	last := &r.lookups[len(r.lookups)-1]
	last.addresses = union(last.addresses, addresses)
	var all []netip.Addr
	for _, one := range r.lookups {
		all = union(all, one.addresses)
	}
	return all, nil
}

func union(all, more []netip.Addr) []netip.Addr {
	all = slices.Concat(all, more)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
