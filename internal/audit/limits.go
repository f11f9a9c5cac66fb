package audit

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/wording"
)

const (
	// Each identity may write burst records of one kind, and one more in each interval.
	burst    = 10
	interval = 10 * time.Second
	// maxDenied bounds the users with counts of their own, and the addresses. Further users share
	// one count, and further addresses another. Callers of repeatable calls have an identity, which
	// an attacker cannot invent: all nodes of a cluster may come back at once.
	maxDenied     = 1_000
	maxRepeatable = 20_000
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

// limits limits the records of one kind, for each identity. Its owner has the lock.
type limits struct {
	users, addresses map[identity]*account
	maxIdentities    int
}

func newLimits(maxIdentities int) *limits {
	return &limits{users: map[identity]*account{}, addresses: map[identity]*account{}, maxIdentities: maxIdentities}
}

// account counts the records of one identity.
type account struct {
	paid       time.Time // the time until which its records so far are paid
	suppressed int       // since the last summary
	last       Record    // of the suppressed ones
}

// admit says whether a record may be written. It counts those that may not.
func (l *limits) admit(record Record, now time.Time) bool {
	of := l.of(identityOf(record.Caller))
	if of.paid.Before(now) {
		of.paid = now
	}
	if of.paid.Sub(now) > (burst-1)*interval {
		of.suppressed++
		of.last = record
		return false
	}
	of.paid = of.paid.Add(interval)
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

func (l *limits) of(named identity) *account {
	known := l.users
	if named.anonymous {
		known = l.addresses
	}
	if known[named] == nil && len(known) >= l.maxIdentities {
		named = named.others()
	}
	found := known[named]
	if found == nil {
		found = &account{}
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

func (s summary) attributes(decision Decision) []slog.Attr {
	all := []slog.Attr{
		slog.String("decision", string(decision)), slog.Int("suppressed", s.suppressed),
		slog.String("last_method", wording.Clip(s.last.Method, maxText)), slog.String("last_object", wording.Clip(s.last.Object, maxText)),
	}
	if s.identity == otherUsers || s.identity == otherAddresses {
		return append(all, slog.Bool("several_users", true))
	}
	return append(all, slog.String("user", wording.Clip(s.last.Caller.User.Name, maxText)), slog.String("address", s.last.Caller.Address))
}

// summaries returns what was suppressed since the last call, ordered by identity, and forgets
// identities that are within their rate.
func (l *limits) summaries(now time.Time) []summary {
	var found []summary
	for _, known := range []map[identity]*account{l.users, l.addresses} {
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
