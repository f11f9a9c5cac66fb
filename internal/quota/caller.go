package quota

import (
	"net/netip"

	"github.com/trivet-dev/trivet/internal/authn"
)

// kind says which population of identities a caller belongs to.
type kind uint8

const (
	unlimited kind = iota
	user
	replica
	address
)

// Caller is the identity that a call counts for. The zero value has no limits.
type Caller struct {
	kind kind
	name string     // of a user or replica
	from netip.Addr // of a caller by address; an IPv6 address without its last 64 bits
}

// User returns the caller with a user name.
func User(name string) Caller { return Caller{kind: user, name: name} }

// Replica returns a gateway or server that calls for itself.
func Replica(name string) Caller { return Caller{kind: replica, name: name} }

// Address returns a caller without an identity. remote is a network address, with or without a
// port. All that cannot be parsed count as one. A client often has 64 bits of IPv6 addresses, so
// these count as one, too.
func Address(remote string) Caller {
	parsed, err := netip.ParseAddrPort(remote)
	from := parsed.Addr()
	if err != nil {
		from, _ = netip.ParseAddr(remote)
	}
	from = from.Unmap().WithZone("")
	if from.Is6() {
		if prefix, err := from.Prefix(64); err == nil {
			from = prefix.Addr()
		}
	}
	return Caller{kind: address, from: from}
}

// CallerOf returns the identity that a call of caller counts for. A server that authorizes nothing
// limits nothing.
func CallerOf(caller *authn.Caller) Caller {
	switch {
	case caller.Unchecked:
		return Caller{}
	case caller.Anonymous():
		return Address(caller.Address)
	case caller.IsPeer(authn.Gateway, authn.Server):
		return Replica(caller.User.Name)
	default:
		return User(caller.User.Name)
	}
}
