package apiservers

import (
	"maps"
	"net/netip"
	"slices"
)

// statuses of servers of which only one thing can be said.
func statuses(have Snapshot, why string) []ServerStatus {
	return (&roster{}).statuses(have, why)
}

// statuses are those of all servers; unless something is known of one, otherwise is why.
func (r *roster) statuses(have Snapshot, otherwise string) []ServerStatus {
	published := PublishedInSlices(have.Slices)
	var all []ServerStatus
	for _, server := range ordered(have.Servers) {
		why := r.why[server.Address]
		if why == "" {
			why = otherwise
		}
		all = append(all, ServerStatus{
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
