package allocation

import (
	"fmt"
	"slices"

	"github.com/trivet-dev/trivet/internal/planned"
)

func (c *cache) compareBit(s subject) []candidate {
	bitmap := c.bitmaps[s.store]
	users, externallyNamed := c.usersOf(s)
	switch {
	case !bitmap.comparable():
		return nil
	case s.store != NodePorts && c.otherBitmapReports(s, bitmap):
		return nil
	}
	var found []candidate
	// Beside IPAddress objects, which report the users of addresses, only the bits are compared.
	reportsUsers := s.store == NodePorts || !c.has(IPAddresses)
	if reportsUsers && hasDuplicate(s, users) {
		found = append(found, duplicateOwner(s, users))
	}
	offset, inside := bitmap.bit(s)
	switch {
	case !inside && len(users) > 0 && reportsUsers:
		return append(found, outOfRange(s, users, "range "+bitmap.Range+" does not hold it"))
	case !inside:
		return found
	case len(users) > 0 && !bitmap.isSet(offset):
		return append(found, bitNotAllocated(bitmap, s, users))
	case len(users) == 0 && !externallyNamed && bitmap.isSet(offset):
		return append(found, bitLeaked(bitmap, s))
	default:
		return found
	}
}

// usersOf returns the Services that use a port or an address, and whether one of type ExternalName
// names the address.
func (c *cache) usersOf(s subject) (users []*user, externallyNamed bool) {
	if s.store == NodePorts {
		return c.ports[s.port], false
	}
	if found := c.addresses[s.address]; found != nil {
		for _, u := range found.users {
			if u.externalName {
				externallyNamed = true
			} else {
				users = append(users, u)
			}
		}
	}
	return users, externallyNamed
}

// otherBitmapReports reports whether the bitmap of the other family compares an address, or would
// if it were readable. If the cluster has no second bitmap, the first one reports addresses of both
// families.
func (c *cache) otherBitmapReports(s subject, bitmap *parsedBitmap) bool {
	if familyOf(bitmap.bits.prefix.Addr()) == familyOf(s.address) {
		return false
	}
	other := c.bitmaps[SecondaryClusterIPs]
	if !c.has(SecondaryClusterIPs) || other != nil && other.fault.absent {
		return s.store != ClusterIPs
	}
	return s.store != ClusterIPs || !other.comparable() || familyOf(other.bits.prefix.Addr()) == familyOf(s.address)
}

// hasDuplicate reports whether two Services use the subject, or one uses a port twice with the same
// protocol.
func hasDuplicate(s subject, users []*user) bool {
	return len(users) > 1 || s.store == NodePorts && slices.ContainsFunc(users, func(u *user) bool {
		return slices.Contains(u.ports, portUse{number: s.port, repeated: true})
	})
}

// bitNotAllocated reports a subject in use whose bit is clear: another Service may get it. Setting
// the bit takes nothing away.
func bitNotAllocated(bitmap *parsedBitmap, s subject, users []*user) candidate {
	found := candidate{grace: graceMissing, incarnation: users[0].UID, Finding: newFinding(s, NotAllocated, users)}
	found.Message = fmt.Sprintf("service %s uses %s %s, which is not allocated in range %s", users[0].Key, s.noun(), s.text(), bitmap.Range)
	found.Evidence = append(found.Evidence, bitEvidence(s, "its bit is clear", "set it before another service gets it"))
	found.Repair = fmt.Sprintf("set the bit of %s %s", s.noun(), s.text())
	offset, _ := bitmap.bit(s)
	found.Steps = []Step{{
		Verb: planned.SetBit, Offset: offset, Range: bitmap.Range, Owner: users[0].Owner, Reason: ReasonInUse, Detail: found.Message,
	}}
	return found.automatic()
}

// bitLeaked reports a set bit without a user, to be cleared once its grace period is over.
func bitLeaked(bitmap *parsedBitmap, s subject) candidate {
	found := candidate{grace: graceUnused, Finding: newFinding(s, Leaked, nil)}
	found.Message = fmt.Sprintf("%s %s is allocated in range %s, and no service uses it", s.noun(), s.text(), bitmap.Range)
	found.Evidence = append(found.Evidence, bitEvidence(s, "its bit is set, and no service uses it",
		"if it happens often, look for a program that removes finalizers of deleted services by a status update: kube-apiserver then frees nothing"))
	found.Repair = fmt.Sprintf("clear the bit of %s %s", s.noun(), s.text())
	offset, _ := bitmap.bit(s)
	found.Steps = []Step{{
		Verb: planned.ClearBit, Offset: offset, Range: bitmap.Range, Sole: true, Reason: ReasonLeaked, Detail: found.Message,
	}}
	return found.automatic()
}
