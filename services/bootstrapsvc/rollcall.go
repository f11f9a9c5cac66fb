package bootstrapsvc

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// source is where a kube-apiserver is known from.
type source int

const (
	fromSidecar source = iota
	fromMasterLease
	fromFlag
)

// present is one kube-apiserver of which something is known.
type present struct {
	server apiservers.Server
	source source
	// secondary is its address of the other family, if it has one.
	secondary netip.Addr
	// name is its address as text, or how its key ends where that is no address.
	name, key, replica string
	probed             time.Time
	ttl                time.Duration
	// problems are what is wrong with its entry. One that is unreadable tells of no server.
	problems   []string
	unreadable bool
}

// rollcall is everybody who is known without asking Kubernetes.
type rollcall struct {
	present  []present
	findings []baseline.Change
	// unresolved says why endpoints that are static have no address.
	unresolved string
}

// servers are those that the endpoints are chosen from, one for each address. Keys that name no address are none.
func (r rollcall) servers(kind apiservers.Kind) []apiservers.Server {
	var servers []apiservers.Server
	for _, each := range r.present {
		if isMeant := (each.source == fromFlag) == (kind == apiservers.Static); !isMeant {
			continue
		}
		for _, address := range (advertised{primary: each.server.Address, secondary: each.secondary}).all() {
			server := each.server
			server.Address = address
			servers = append(servers, server)
		}
	}
	return servers
}

// caller calls the roll. It writes nothing; what adoption found out is all that it remembers.
type caller struct {
	keys   keys
	static target
	// staticPort is that of a static address.
	staticPort int32
	resolver   resolver
	// adoption is nil unless kube-apiserver's own keys are read, too.
	adoption *adoption
}

// call reads the keys with read, which is keys.Read or, with what is left of their leases, keys.List.
func (c *caller) call(ctx context.Context, read func(context.Context) ([]apiserverscontroller.Entry, error)) (rollcall, error) {
	var roll rollcall
	entries, err := read(ctx)
	if err != nil {
		return rollcall{}, err
	}
	var spoken []netip.Addr
	for _, entry := range entries {
		each := c.reporting(entry)
		roll.present = append(roll.present, each)
		for _, problem := range each.problems {
			roll.findings = append(roll.findings, apiservers.ReportKey(entry.Unreadable == "", problem))
		}
		if entry.Unreadable == "" && !entry.Left && entry.Leased {
			spoken = append(spoken, advertised{primary: entry.Address, secondary: entry.Secondary}.all()...)
		}
	}
	if c.adoption != nil {
		if err := c.adopt(ctx, &roll, spoken); err != nil {
			return rollcall{}, err
		}
	}
	c.resolve(ctx, &roll)
	slices.SortStableFunc(roll.present, func(a, b present) int {
		return cmp.Or(a.server.Address.Compare(b.server.Address), cmp.Compare(a.source, b.source), cmp.Compare(a.key, b.key))
	})
	return roll, nil
}

// reporting is a kube-apiserver whose sidecar reports. A key that cannot be read is one that is not ready.
func (c *caller) reporting(entry apiserverscontroller.Entry) present {
	each := present{
		server: apiservers.Server{
			Address: entry.Address, Port: entry.Port, Ready: entry.Ready, Left: entry.Left, Detail: entry.Detail,
		},
		source: fromSidecar, secondary: entry.Secondary,
		name: entry.Name, key: c.keys.Key(entry), replica: entry.ReplicaID, probed: entry.ProbeTime, ttl: entry.TTL,
	}
	if entry.Address.IsValid() {
		each.name = entry.Address.String()
	}
	object := func(problem string) {
		each.server.Ready, each.server.Detail = false, problem
		each.problems = append(each.problems, problem)
	}
	switch {
	case entry.Unreadable != "":
		each.unreadable = true
		object(fmt.Sprintf("key %s: %s", each.key, entry.Unreadable))
	case !entry.Leased:
		each.server.Stale = true
		object(fmt.Sprintf("key %s has no lease, so it would outlive its sidecar; delete it", each.key))
	case entry.Left:
		each.server.Detail = "its sidecar stopped in good order"
	}
	return each
}

func (c *caller) adopt(ctx context.Context, roll *rollcall, spoken []netip.Addr) error {
	claims, err := c.adoption.claims(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if slices.Contains(spoken, claim.Address) {
			continue
		}
		server, findings := apiservers.Adopt(claim.Claim)
		each := present{
			server: server, source: fromMasterLease, unreadable: claim.Unreadable != "",
			name: path.Base(claim.Key), key: claim.Key, ttl: claim.ttl, probed: claim.probed,
		}
		if server.Address.IsValid() {
			each.name = server.Address.String()
		}
		for _, finding := range findings {
			each.problems = append(each.problems, finding.Detail)
		}
		roll.present = append(roll.present, each)
		roll.findings = append(roll.findings, findings...)
	}
	return nil
}

// resolveTimeout leaves a pass time for the rest when DNS does not answer.
const resolveTimeout = 3 * time.Second

// resolve adds the static address, or those to which the static name leads now. A failure is no address, which changes nothing
// that is published.
func (c *caller) resolve(ctx context.Context, roll *rollcall) {
	addresses := []netip.Addr{c.static.address}
	if c.static.name != "" {
		ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
		var err error
		addresses, err = c.resolver.LookupNetIP(ctx, "ip", c.static.name)
		switch {
		case err != nil:
			roll.unresolved = fmt.Sprintf("static address %s cannot be resolved: %v", c.static.name, err)
		case len(addresses) == 0:
			roll.unresolved = fmt.Sprintf("static address %s leads to no address", c.static.name)
		}
	}
	for _, address := range addresses {
		if address = address.Unmap(); address.IsValid() {
			server := apiservers.Server{Address: address, Port: c.staticPort, Ready: true, Detail: "static addresses are not probed"}
			roll.present = append(roll.present, present{server: server, source: fromFlag, name: address.String()})
		}
	}
}
