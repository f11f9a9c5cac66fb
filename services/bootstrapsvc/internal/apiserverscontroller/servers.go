package apiserverscontroller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// Source is where a kube-apiserver is known from.
type Source int

// A kube-apiserver is known from the key of its sidecar, from its master lease, or from
// --static-apiserver-address.
const (
	FromSidecar Source = iota
	FromMasterLease
	FromFlag
)

// KnownServer is one kube-apiserver and where it is known from.
type KnownServer struct {
	apiservers.Server

	Source Source
	// Secondary is the address of the other family; the zero Addr if the server has none.
	Secondary netip.Addr
	// Name is the address as text, or the end of the key if that is no address.
	Name string
	// Key is the etcd key; empty for a static address. ReplicaID is the replica that wrote it, if
	// any.
	Key, ReplicaID string
	// ProbeTime is when the last probe ended; zero if there was none.
	ProbeTime time.Time
	// TTL is the rest of the key's lease; zero if it is unknown.
	TTL time.Duration
	// Problems are reports of what is wrong with the key.
	Problems []baseline.Change
	// Unreadable says that the key could not be read, so it stands for no server.
	Unreadable bool
}

// ServerList is what etcd and flags say about the kube-apiservers. Kubernetes is not asked.
type ServerList struct {
	// Servers are ordered by address, source and key.
	Servers []KnownServer
	// Reports are about keys that need an operator.
	Reports []baseline.Change
	// Unresolved says why the static name has no address; empty if it has.
	Unresolved string
}

// Candidates are the servers from which a policy chooses endpoints, one for each address.
func (l ServerList) Candidates(kind apiservers.Kind) []apiservers.Server {
	var candidates []apiservers.Server
	for _, known := range l.Servers {
		if isStatic := known.Source == FromFlag; isStatic != (kind == apiservers.Static) {
			continue
		}
		for _, address := range (hostaddress.Addresses{Primary: known.Address, Secondary: known.Secondary}).All() {
			server := known.Server
			server.Address = address
			candidates = append(candidates, server)
		}
	}
	return candidates
}

func (l ServerList) countByState() map[string]int {
	states := map[string]int{"ready": 0, "not_ready": 0, "unreadable": 0}
	for _, server := range l.Servers {
		switch {
		case server.Unreadable:
			states["unreadable"]++
		case server.Ready:
			states["ready"]++
		default:
			states["not_ready"]++
		}
	}
	return states
}

// listServers reads the keys with read: Keys.Read, or Keys.List for TTLs too.
func (c *Controller) listServers(ctx context.Context, read func(context.Context) ([]Entry, error)) (ServerList, error) {
	entries, err := read(ctx)
	if err != nil {
		return ServerList{}, err
	}
	var list ServerList
	var reported []netip.Addr
	for _, entry := range entries {
		known := c.serverOf(entry)
		list.Servers = append(list.Servers, known)
		list.Reports = append(list.Reports, known.Problems...)
		if entry.Unreadable == "" && !entry.Left && entry.Leased {
			reported = append(reported, hostaddress.Addresses{Primary: entry.Address, Secondary: entry.Secondary}.All()...)
		}
	}
	if c.adoption != nil {
		if err := c.adopt(ctx, &list, reported); err != nil {
			return ServerList{}, err
		}
	}
	c.resolveStatic(ctx, &list)
	slices.SortStableFunc(list.Servers, func(a, b KnownServer) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key))
	})
	return list, nil
}

// serverOf is the server of a sidecar's key. A key that cannot be read stands for a server that is
// not ready.
func (c *Controller) serverOf(entry Entry) KnownServer {
	known := KnownServer{
		Server: apiservers.Server{
			Address: entry.Address, Port: entry.Port, Ready: entry.Ready, Left: entry.Left, Detail: entry.Detail,
		},
		Source: FromSidecar, Secondary: entry.Secondary,
		Name: entry.Name, Key: c.Keys.Key(entry), ReplicaID: entry.ReplicaID, ProbeTime: entry.ProbeTime, TTL: entry.TTL,
	}
	if entry.Address.IsValid() {
		known.Name = entry.Address.String()
	}
	notReady := func(problem string) {
		known.Ready, known.Detail = false, problem
		known.Problems = append(known.Problems, apiservers.ReportKey(entry.Unreadable == "", problem))
	}
	switch {
	case entry.Unreadable != "":
		known.Unreadable = true
		notReady(fmt.Sprintf("key %s: %s", known.Key, entry.Unreadable))
	case !entry.Leased:
		known.Stale = true
		notReady(fmt.Sprintf("key %s has no lease, so it would outlive its sidecar; delete it", known.Key))
	case entry.Left:
		known.Detail = "its sidecar stopped in good order"
	}
	return known
}

// adopt adds the servers of master leases, except those whose sidecar has reported.
func (c *Controller) adopt(ctx context.Context, list *ServerList, reported []netip.Addr) error {
	leases, err := c.MasterLeases(ctx)
	if err != nil {
		return err
	}
	for _, lease := range leases {
		if slices.Contains(reported, lease.Address) {
			continue
		}
		readiness, probed := c.adoption.readinessOf(lease.Address)
		notReady := ""
		if probed && !readiness.Ready {
			notReady = readiness.Last.Detail
		}
		server, reports := apiservers.Adopt(lease, c.Port, notReady)
		known := KnownServer{
			Server: server, Source: FromMasterLease, Unreadable: lease.Unreadable != "",
			Name: path.Base(lease.Key), Key: lease.Key, TTL: lease.TTL, ProbeTime: readiness.Last.Time,
			Problems: reports,
		}
		if server.Address.IsValid() {
			known.Name = server.Address.String()
		}
		list.Servers = append(list.Servers, known)
		list.Reports = append(list.Reports, reports...)
	}
	return nil
}

// resolveStatic adds the static address, or the addresses of the static name. A failed lookup adds
// no address, which changes nothing that is published.
func (c *Controller) resolveStatic(ctx context.Context, list *ServerList) {
	addresses := []netip.Addr{c.StaticAddress}
	if name := c.StaticName; name != "" {
		var err error
		if addresses, err = c.resolver.resolve(ctx, name); err != nil {
			list.Unresolved = err.Error()
		}
	}
	for _, address := range addresses {
		if address.IsValid() {
			list.Servers = append(list.Servers, KnownServer{
				Server: apiservers.Server{
					Address: address, Port: c.StaticPort, Ready: true, Detail: "static addresses are not probed",
				},
				Source: FromFlag, Name: address.String(),
			})
		}
	}
}
