package apiservers

import (
	"maps"
	"net/netip"
	"slices"
)

// standings of servers of which only one thing can be said.
func standings(have Snapshot, why string) []Standing {
	return (&roster{}).standings(have, why)
}

// standings are those of all servers; unless something is known of one, otherwise is why.
func (r *roster) standings(have Snapshot, otherwise string) []Standing {
	published := PublishedInSlices(have.Slices)
	var all []Standing
	for _, server := range ordered(have.Servers) {
		why := r.why[server.Address]
		if why == "" {
			why = otherwise
		}
		all = append(all, Standing{
			Address:   server.Address,
			Wanted:    slices.Contains(r.addresses, server.Address),
			Published: slices.Contains(published, server.Address.String()),
			Why:       why,
		})
	}
	return all
}

func joined(a, b map[netip.Addr]string) map[netip.Addr]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
