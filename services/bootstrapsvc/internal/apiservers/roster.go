package apiservers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// roster is who of one family should be published.
type roster struct {
	family    discoveryv1.AddressType
	addresses []netip.Addr
	port      int32
	extra     []Port
	// reports name each server that had to be left out although it is ready, or kept although it is not, and why.
	reports []baseline.Change
	// why says for people why a server is in it, or not.
	why map[netip.Addr]string
}

// texts are the addresses as Kubernetes objects write them.
func (r *roster) texts() []string {
	texts := make([]string, 0, len(r.addresses))
	for _, address := range r.addresses {
		texts = append(texts, address.String())
	}
	return texts
}

// elect picks the servers of one family that are to be endpoints. Without a ready one it picks none.
func elect(want Want, family discoveryv1.AddressType, have Snapshot) roster {
	elected := roster{family: family, extra: want.ExtraPorts, why: map[netip.Addr]string{}}
	var ready, others []Server
	for _, server := range ordered(have.Servers) {
		if want.DualStack && FamilyOf(server.Address) != family {
			continue // it is in the other roster
		}
		switch objection, isFit := elected.fit(want, server); {
		case !isFit:
			elected.object(want, server, objection)
		case server.Ready:
			ready = append(ready, server)
		default:
			elected.why[server.Address] = "it is not ready: " + cmp.Or(server.Detail, "nothing is known of it")
			others = append(others, server)
		}
	}
	elected.port = commonPort(ready)
	elected.admit(ready)
	if len(elected.addresses) == 0 {
		return elected
	}
	switch want.Kind {
	case Counted:
		elected.count(want, others, have)
	default:
		elected.hold(want, others, have)
	}
	slices.SortFunc(elected.addresses, netip.Addr.Compare)
	return elected
}

// object leaves a server out. That one is out anyway which is not ready, or is one of the addresses of a name that leads to
// both families, is nothing to report.
func (r *roster) object(want Want, server Server, objection baseline.Change) {
	r.why[server.Address] = objection.Detail
	if isOtherFamily := objection.Reason == FamilyMismatch; server.Ready && (want.Kind != Static || !isOtherFamily) {
		r.reports = append(r.reports, objection)
	}
}

// admit takes the ready servers that serve on the common port.
func (r *roster) admit(ready []Server) {
	for _, server := range ready {
		if server.Port != r.port {
			objection := report(PortMismatch, fmt.Sprintf(
				"kube-apiserver %s serves on port %d, most serve on %d; it is left out", server.Address, server.Port, r.port))
			r.reports = append(r.reports, objection)
			r.why[server.Address] = objection.Detail
			continue
		}
		r.addresses = append(r.addresses, server.Address)
		r.why[server.Address] = "it is ready"
	}
}

// hold keeps published servers that report and are not ready, so that no fewer addresses than the floor are left.
func (r *roster) hold(want Want, others []Server, have Snapshot) {
	published := r.published(have)
	for _, server := range others {
		if len(r.addresses) >= want.MinReady {
			return
		}
		if !server.Left && !server.Stale && server.Port == r.port && slices.Contains(published, server.Address) {
			r.keep(server.Address, fmt.Sprintf("it is not ready, and stays because fewer than %d are", want.MinReady))
		}
	}
}

// count keeps what is published while there is room: first those that report, then those of which nothing is known.
func (r *roster) count(want Want, others []Server, have Snapshot) {
	if ready := len(r.addresses); ready > want.Count {
		r.reports = append(r.reports, report(CountExceeded, fmt.Sprintf(
			"%d kube-apiservers are ready, and --apiserver-count says %d; all of them are published", ready, want.Count)))
	}
	gone := leaving(want, have.Servers)
	published := slices.DeleteFunc(r.published(have), func(address netip.Addr) bool {
		_, isFit := r.fit(want, Server{Address: address})
		return !isFit || slices.Contains(gone, address) || slices.Contains(r.addresses, address)
	})
	reports := func(address netip.Addr) bool {
		return slices.ContainsFunc(others, func(server Server) bool { return server.Address == address && !server.Stale })
	}
	slices.SortStableFunc(published, func(a, b netip.Addr) int { return first(reports(a)) - first(reports(b)) })
	for _, address := range published {
		if len(r.addresses) >= want.Count {
			return
		}
		r.keep(address, fmt.Sprintf("it is not ready, and stays because there are no more than %d", want.Count))
	}
}

func first(isIt bool) int {
	if isIt {
		return 0
	}
	return 1
}

func (r *roster) keep(address netip.Addr, why string) {
	r.addresses = append(r.addresses, address)
	r.why[address] = why
	r.reports = append(r.reports, report(Kept, fmt.Sprintf("kube-apiserver %s: %s", address, why)))
}

// published are the addresses of the roster's family in Endpoints and in the slices that are kept here, ordered.
func (r *roster) published(have Snapshot) []netip.Addr {
	texts := PublishedInEndpoints(have.Endpoints)
	for _, slice := range have.Slices {
		if isOwn(slice) {
			texts = append(texts, publishedIn(slice)...)
		}
	}
	var published []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil && FamilyOf(address) == r.family {
			published = append(published, address.Unmap())
		}
	}
	slices.SortFunc(published, netip.Addr.Compare)
	return slices.Compact(published)
}

// ordered returns the servers by address, each address once; a server that is ready goes before its own double, and one that
// left, or may be no more, behind it.
func ordered(servers []Server) []Server {
	sorted := slices.Clone(servers)
	slices.SortFunc(sorted, func(a, b Server) int {
		return cmp.Or(
			a.Address.Compare(b.Address),
			first(a.Ready)-first(b.Ready),
			first(!a.Stale)-first(!b.Stale),
			first(!a.Left)-first(!b.Left),
			int(a.Port)-int(b.Port),
			cmp.Compare(a.Detail, b.Detail),
		)
	})
	return slices.CompactFunc(sorted, func(a, b Server) bool { return a.Address == b.Address })
}

// fit tells whether a server could be an endpoint of the roster, and otherwise why not.
func (r *roster) fit(want Want, server Server) (baseline.Change, bool) {
	if has := FamilyOf(server.Address); has != r.family {
		return report(FamilyMismatch, fmt.Sprintf(
			"kube-apiserver %s is %s, the service default/kubernetes is %s; it is left out", server.Address, has, r.family)), false
	}
	if address := server.Address; !address.IsGlobalUnicast() || address.Is4In6() || address.Zone() != "" {
		return report(NotRoutable, fmt.Sprintf(
			"kube-apiserver %s has an address that pods cannot reach; it is left out", server.Address)), false
	}
	if server.Address == want.ServiceIP {
		// A sidecar that was pointed at the Service instead of its own server. The Service would lead to itself.
		return report(NotRoutable, fmt.Sprintf(
			"kube-apiserver %s has the ClusterIP of the service default/kubernetes as its address; it is left out", server.Address)), false
	}
	return baseline.Change{}, true
}

// FamilyOf is the address type a slice needs for an address.
func FamilyOf(address netip.Addr) discoveryv1.AddressType {
	if address.Unmap().Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func otherThan(family discoveryv1.AddressType) discoveryv1.AddressType {
	if family == discoveryv1.AddressTypeIPv4 {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// commonPort is the port on which most servers serve, the lowest of those on a tie.
func commonPort(servers []Server) int32 {
	votes := map[int32]int{}
	for _, server := range servers {
		votes[server.Port]++
	}
	var elected int32
	for port, count := range votes {
		if count > votes[elected] || count == votes[elected] && port < elected {
			elected = port
		}
	}
	return elected
}
