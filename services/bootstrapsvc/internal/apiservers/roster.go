package apiservers

import (
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
)

// roster is who should be published.
type roster struct {
	addresses []netip.Addr
	port      int32
	// reports name each ready server that had to be left out, and why.
	reports []change.Change
}

// texts are the addresses as Kubernetes objects write them.
func (r roster) texts() []string {
	texts := make([]string, 0, len(r.addresses))
	for _, address := range r.addresses {
		texts = append(texts, address.String())
	}
	return texts
}

// elect picks the ready servers that can be endpoints of one Service.
func elect(serviceIP netip.Addr, servers []Server) roster {
	var elected roster
	candidates := make([]Server, 0, len(servers))
	for _, server := range ordered(servers) {
		if !server.Ready {
			continue
		}
		if objection, fit := unfit(server, serviceIP); !fit {
			elected.reports = append(elected.reports, objection)
			continue
		}
		candidates = append(candidates, server)
	}
	elected.port = commonPort(candidates)
	for _, server := range candidates {
		if server.Port != elected.port {
			elected.reports = append(elected.reports, report(PortMismatch, fmt.Sprintf(
				"kube-apiserver %s serves on port %d, most serve on %d; it is left out", server.Address, server.Port, elected.port)))
			continue
		}
		elected.addresses = append(elected.addresses, server.Address)
	}
	return elected
}

// ordered returns the servers by address, each address once; a server that is ready goes before its own double.
func ordered(servers []Server) []Server {
	sorted := slices.Clone(servers)
	slices.SortFunc(sorted, func(a, b Server) int {
		switch order := a.Address.Compare(b.Address); {
		case order != 0:
			return order
		case a.Ready != b.Ready && a.Ready:
			return -1
		case a.Ready != b.Ready:
			return 1
		default:
			return int(a.Port) - int(b.Port)
		}
	})
	return slices.CompactFunc(sorted, func(a, b Server) bool { return a.Address == b.Address })
}

func unfit(server Server, serviceIP netip.Addr) (change.Change, bool) {
	if address := server.Address; !address.IsGlobalUnicast() || address.Is4In6() || address.Zone() != "" {
		return report(NotRoutable, fmt.Sprintf(
			"kube-apiserver %s has an address that pods cannot reach; it is left out", server.Address)), false
	}
	if server.Address == serviceIP {
		// A sidecar that was pointed at the Service instead of its own server. The Service would lead to itself.
		return report(NotRoutable, fmt.Sprintf(
			"kube-apiserver %s has the ClusterIP of the service default/kubernetes as its address; it is left out", server.Address)), false
	}
	if has, family := FamilyOf(server.Address), FamilyOf(serviceIP); has != family {
		return report(FamilyMismatch, fmt.Sprintf(
			"kube-apiserver %s is %s, the service default/kubernetes is %s; it is left out", server.Address, has, family)), false
	}
	return change.Change{}, true
}

// FamilyOf is the address type a slice needs for an address.
func FamilyOf(address netip.Addr) discoveryv1.AddressType {
	if address.Unmap().Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
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
