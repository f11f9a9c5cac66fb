package apiservers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// desired are the desired endpoints of one family.
type desired struct {
	family    discoveryv1.AddressType
	addresses []netip.Addr
	port      int32
	extra     []Port
	// reports name each server that is left out although it is ready, or kept although it is not.
	reports []baseline.Change
	// why says why a server is desired or not.
	why map[netip.Addr]cause
}

// cause says why a server is desired or not.
type cause struct {
	reason baseline.Reason
	detail string
}

// selectServers selects the servers of one family. Without a ready server it selects none.
func selectServers(want Want, family discoveryv1.AddressType, have Snapshot) desired {
	d := desired{family: family, extra: want.ExtraPorts, why: map[netip.Addr]cause{}}
	var ready, others []Server
	for _, server := range ordered(have.Servers) {
		if want.DualStack && FamilyOf(server.Address) != family {
			continue // the other family selects it
		}
		switch problem, isUsable := d.checkUsable(want, server); {
		case !isUsable:
			d.leaveOut(want, server, problem)
		case server.Ready:
			ready = append(ready, server)
		default:
			d.why[server.Address] = cause{NotReady, "it is not ready: " + cmp.Or(server.Detail, "nothing is known of it")}
			others = append(others, server)
		}
	}
	d.port = mostFrequentPort(ready)
	d.addReady(ready)
	if len(d.addresses) == 0 {
		return d
	}
	switch want.Kind {
	case Counted:
		d.keepUpToCount(want, others, have)
	case Live:
		d.keepUnreported(want, have, func(u Unreported) bool { return !u.Failed })
		d.keepUpToFloor(want, others, have)
		d.keepUnreported(want, have, func(Unreported) bool { return len(d.addresses) < want.MinReady })
	default:
		d.keepUpToFloor(want, others, have)
	}
	slices.SortFunc(d.addresses, netip.Addr.Compare)
	return d
}

// ordered returns the servers by address, each address once. Of the entries of one address, a ready
// one counts first, and a stale one or one that left counts last.
func ordered(servers []Server) []Server {
	sorted := slices.Clone(servers)
	slices.SortFunc(sorted, func(a, b Server) int {
		return cmp.Or(
			a.Address.Compare(b.Address),
			trueFirst(a.Ready, b.Ready),
			trueFirst(!a.Stale, !b.Stale),
			trueFirst(!a.Left, !b.Left),
			int(a.Port)-int(b.Port),
			cmp.Compare(a.Detail, b.Detail),
		)
	})
	return slices.CompactFunc(sorted, func(a, b Server) bool { return a.Address == b.Address })
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// checkUsable says whether a server could be an endpoint, and otherwise what prevents it.
func (d *desired) checkUsable(want Want, server Server) (baseline.Change, bool) {
	if family := FamilyOf(server.Address); family != d.family {
		return report(FamilyMismatch, fmt.Sprintf(
			"kube-apiserver %s is %s, the service default/kubernetes is %s; it is left out", server.Address, family, d.family)), false
	}
	if address := server.Address; !address.IsGlobalUnicast() || address.Is4In6() || address.Zone() != "" {
		return report(NotRoutable, fmt.Sprintf(
			"kube-apiserver %s has an address that pods cannot reach; it is left out", server.Address)), false
	}
	if server.Address == want.ServiceIP {
		// The sidecar was given the address of the Service, and the Service would lead to itself.
		return report(NotRoutable, fmt.Sprintf(
			"kube-apiserver %s has the ClusterIP of the service default/kubernetes as its address; it is left out", server.Address)), false
	}
	return baseline.Change{}, true
}

// leaveOut reports a ready server that is not usable. An address of the other family is not
// reported where a static name resolves to both families.
func (d *desired) leaveOut(want Want, server Server, problem baseline.Change) {
	d.why[server.Address] = cause{problem.Reason, problem.Detail}
	if isOtherFamily := problem.Reason == FamilyMismatch; server.Ready && (want.Kind != Static || !isOtherFamily) {
		d.reports = append(d.reports, problem)
	}
}

func mostFrequentPort(servers []Server) int32 {
	counts := map[int32]int{}
	for _, server := range servers {
		counts[server.Port]++
	}
	var best int32
	for port, count := range counts {
		if count > counts[best] || count == counts[best] && port < best {
			best = port
		}
	}
	return best
}

func (d *desired) addReady(ready []Server) {
	for _, server := range ready {
		if server.Port != d.port {
			problem := report(PortMismatch, fmt.Sprintf(
				"kube-apiserver %s listens on port %d, most listen on %d; it is left out", server.Address, server.Port, d.port))
			d.reports = append(d.reports, problem)
			d.why[server.Address] = cause{problem.Reason, problem.Detail}
			continue
		}
		d.addresses = append(d.addresses, server.Address)
		d.why[server.Address] = cause{Ready, "it is ready"}
	}
}

// keepUpToFloor keeps published servers that report and are not ready, until the floor is reached.
func (d *desired) keepUpToFloor(want Want, others []Server, have Snapshot) {
	published := d.published(have)
	for _, server := range others {
		if len(d.addresses) >= want.MinReady {
			return
		}
		if !server.Left && !server.Stale && server.Port == d.port && slices.Contains(published, server.Address) {
			d.keep(server.Address, fmt.Sprintf("it is not ready, and stays because fewer than %d are", want.MinReady))
		}
	}
}

// keepUnreported keeps published servers without a key.
func (d *desired) keepUnreported(want Want, have Snapshot, isKept func(Unreported) bool) {
	gone := leaving(want, have.Servers)
	for _, unreported := range have.Unreported {
		address := unreported.Address
		_, isUsable := d.checkUsable(want, Server{Address: address})
		if !isUsable || slices.Contains(gone, address) || slices.Contains(d.addresses, address) || !isKept(unreported) {
			continue
		}
		why := "it has no key in etcd, and stays until its probes fail; " + unreported.Detail
		if unreported.Failed {
			why = fmt.Sprintf("it has no key in etcd, and stays because fewer than %d are ready; %s", want.MinReady, unreported.Detail)
		}
		d.keep(address, why)
	}
}

// keepUpToCount keeps published servers until the count is reached: first those that report, then
// those of unknown state.
func (d *desired) keepUpToCount(want Want, others []Server, have Snapshot) {
	if ready := len(d.addresses); ready > want.Count {
		d.reports = append(d.reports, report(CountExceeded, fmt.Sprintf(
			"%d kube-apiservers are ready, and --apiserver-count says %d; all of them are published", ready, want.Count)))
	}
	gone := leaving(want, have.Servers)
	published := slices.DeleteFunc(d.published(have), func(address netip.Addr) bool {
		_, isUsable := d.checkUsable(want, Server{Address: address})
		return !isUsable || slices.Contains(gone, address) || slices.Contains(d.addresses, address)
	})
	reports := func(address netip.Addr) bool {
		return slices.ContainsFunc(others, func(server Server) bool { return server.Address == address && !server.Stale })
	}
	slices.SortStableFunc(published, func(a, b netip.Addr) int { return trueFirst(reports(a), reports(b)) })
	for _, address := range published {
		if len(d.addresses) >= want.Count {
			return
		}
		d.keep(address, fmt.Sprintf("it is not ready, and stays because there are no more than %d", want.Count))
	}
}

// leaving are the addresses of servers that stopped in good order and have not reported since. A
// static address never leaves.
func leaving(want Want, servers []Server) []netip.Addr {
	if want.Kind == Static {
		return nil
	}
	left := slices.Clone(want.Leaving)
	for _, server := range servers {
		if server.Left {
			left = append(left, server.Address)
		}
	}
	reports := func(address netip.Addr) bool {
		return slices.ContainsFunc(servers, func(server Server) bool { return server.Address == address && !server.Left && !server.Stale })
	}
	if slices.ContainsFunc(want.Leaving, reports) {
		return nil
	}
	left = slices.DeleteFunc(left, reports)
	slices.SortFunc(left, netip.Addr.Compare)
	return slices.Compact(left)
}

func (d *desired) keep(address netip.Addr, why string) {
	d.addresses = append(d.addresses, address)
	d.why[address] = cause{Kept, why}
	d.reports = append(d.reports, report(Kept, fmt.Sprintf("kube-apiserver %s: %s", address, why)))
}

// published are the published addresses of this family, ordered.
func (d *desired) published(have Snapshot) []netip.Addr {
	return slices.DeleteFunc(have.Published(), func(address netip.Addr) bool { return FamilyOf(address) != d.family })
}

func (d *desired) statuses(have Snapshot, fallback cause) []ServerStatus {
	published := PublishedInSlices(have.Slices)
	var all []ServerStatus
	for _, server := range ordered(have.Servers) {
		why := cmp.Or(d.why[server.Address], fallback)
		all = append(all, ServerStatus{
			Address:   server.Address,
			Wanted:    slices.Contains(d.addresses, server.Address),
			Published: slices.Contains(published, server.Address.String()),
			Reason:    why.reason,
			Why:       why.detail,
		})
	}
	return all
}

func (d *desired) texts() []string {
	texts := make([]string, 0, len(d.addresses))
	for _, address := range d.addresses {
		texts = append(texts, address.String())
	}
	return texts
}

func (d *desired) ports() []Port {
	return append([]Port{{Name: baseline.PortName, Protocol: corev1.ProtocolTCP, Port: d.port}}, d.extra...)
}

func (d *desired) slicePorts() []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for _, port := range d.ports() {
		ports = append(ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &port.Port})
	}
	return ports
}

func (d *desired) endpointsPorts() []corev1.EndpointPort {
	var ports []corev1.EndpointPort
	for _, port := range d.ports() {
		ports = append(ports, corev1.EndpointPort{Name: port.Name, Protocol: port.Protocol, Port: port.Port})
	}
	return ports
}

func (d *desired) portsText() string {
	var texts []string
	for _, port := range d.ports() {
		texts = append(texts, fmt.Sprintf("%s %d/%s", port.Name, port.Port, port.Protocol))
	}
	return strings.Join(texts, ", ")
}
