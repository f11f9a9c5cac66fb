package audit

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
)

const (
	// Each identity may write denialBurst denials, and one more in denialInterval.
	denialBurst    = 10
	denialInterval = 10 * time.Second
	// maxIdentities bounds the users with counts of their own, and the addresses. Further users
	// share one count, and further addresses another.
	maxIdentities = 1000
)

// otherUsers and otherAddresses are the identities beyond the bound.
var otherUsers, otherAddresses = identity{}, identity{anonymous: true}

// identity is a user, or the address of a caller without an identity.
type identity struct {
	anonymous bool
	name      string
}

// others is what identities beyond the bound share.
func (i identity) others() identity { return identity{anonymous: i.anonymous} }

// denials limits the records of denials, for each identity. Its owner has the lock.
type denials struct {
	users, addresses map[identity]*denied
}

func newDenials() denials {
	return denials{users: map[identity]*denied{}, addresses: map[identity]*denied{}}
}

// denied are the denials of one identity.
type denied struct {
	paid       time.Time // the time until which its records so far are paid
	suppressed int       // since the last summary
	last       Record    // of the suppressed ones
}

// admit says whether a denial may be written. It counts those that may not.
func (d *denials) admit(record Record, now time.Time) bool {
	of := d.of(identityOf(record.Caller))
	if of.paid.Before(now) {
		of.paid = now
	}
	if of.paid.Sub(now) > (denialBurst-1)*denialInterval {
		of.suppressed++
		of.last = record
		return false
	}
	of.paid = of.paid.Add(denialInterval)
	return true
}

// identityOf returns the user of a caller, with the node of a token: the agents of all nodes may
// have one user. A client often has 64 bits of IPv6 addresses, so these count as one.
func identityOf(caller *authn.Caller) identity {
	if !caller.Anonymous() {
		return identity{name: strings.Join(append([]string{caller.User.Name}, caller.User.Extra[nodeNameKey]...), " ")}
	}
	from, err := netip.ParseAddrPort(caller.Address)
	if err != nil {
		return identity{anonymous: true, name: caller.Address}
	}
	address := from.Addr().Unmap().WithZone("")
	if prefix, err := address.Prefix(64); err == nil && address.Is6() {
		address = prefix.Addr()
	}
	return identity{anonymous: true, name: address.String()}
}

func (d *denials) of(named identity) *denied {
	known := d.users
	if named.anonymous {
		known = d.addresses
	}
	if known[named] == nil && len(known) >= maxIdentities {
		named = named.others()
	}
	found := known[named]
	if found == nil {
		found = &denied{}
		known[named] = found
	}
	return found
}

// summary is what was not written of one identity.
type summary struct {
	identity   identity // otherUsers or otherAddresses for several
	suppressed int
	last       Record
}

// summaries returns what was suppressed since the last call, ordered by identity, and forgets
// identities that are within their rate.
func (d *denials) summaries(now time.Time) []summary {
	var found []summary
	for _, known := range []map[identity]*denied{d.users, d.addresses} {
		for named, of := range known {
			if of.suppressed > 0 {
				found = append(found, summary{identity: named, suppressed: of.suppressed, last: of.last})
				of.suppressed, of.last = 0, Record{}
			}
			if !of.paid.After(now) {
				delete(known, named)
			}
		}
	}
	slices.SortFunc(found, func(a, b summary) int { return strings.Compare(a.identity.name, b.identity.name) })
	return found
}
