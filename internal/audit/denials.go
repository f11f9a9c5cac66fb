package audit

import (
	"net"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
)

const (
	// Each identity may write denialBurst denials, and one more in denialInterval.
	denialBurst    = 10
	denialInterval = 10 * time.Second
	// maxIdentities bounds the identities with counts of their own. Further ones share one.
	maxIdentities = 1000
	// otherIdentities is the key of the identities beyond the bound.
	otherIdentities = ""
)

// denials limits the records of denials, for each identity. Its owner has the lock.
type denials struct {
	byIdentity map[string]*denied
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

// identityOf returns a user, or the address of a caller without an identity.
func identityOf(caller *authn.Caller) string {
	if !caller.Anonymous() {
		return "user " + caller.User.Name
	}
	host, _, err := net.SplitHostPort(caller.Address)
	if err != nil {
		host = caller.Address
	}
	return "address " + host
}

func (d *denials) of(identity string) *denied {
	if known := d.byIdentity[identity]; known != nil {
		return known
	}
	if len(d.byIdentity) >= maxIdentities {
		identity = otherIdentities
		if known := d.byIdentity[identity]; known != nil {
			return known
		}
	}
	made := &denied{}
	d.byIdentity[identity] = made
	return made
}

// summary is what was not written of one identity.
type summary struct {
	identity   string // otherIdentities for several
	suppressed int
	last       Record
}

// summaries returns what was suppressed since the last call, ordered by identity, and forgets
// identities that are within their rate.
func (d *denials) summaries(now time.Time) []summary {
	var found []summary
	for identity, of := range d.byIdentity {
		if of.suppressed > 0 {
			found = append(found, summary{identity: identity, suppressed: of.suppressed, last: of.last})
			of.suppressed, of.last = 0, Record{}
		}
		if !of.paid.After(now) {
			delete(d.byIdentity, identity)
		}
	}
	slices.SortFunc(found, func(a, b summary) int { return strings.Compare(a.identity, b.identity) })
	return found
}
