package allocation

import (
	"fmt"
	"slices"
)

// compareBit says what is wrong with a port, or an address, and its bit.
func (w *cache) compareBit(s subject) []candidate {
	g := w.bitmaps[s.store]
	users, named := w.usersOf(s)
	switch {
	case !g.comparable():
		return nil
	case s.store != NodePorts && w.otherBitmapJudges(s, g):
		return nil
	}
	var drafts []candidate
	alone := s.store == NodePorts || !w.has(IPAddresses) // otherwise the IPAddress objects tell
	if alone && conflicts(s, users) {
		drafts = append(drafts, duplicateOwner(s, users))
	}
	offset, inside := g.bit(s)
	switch {
	case !inside && len(users) > 0 && alone:
		return append(drafts, outOfRange(s, users, "range "+g.Range+" does not hold it"))
	case !inside:
		return drafts
	case len(users) > 0 && !hasBit(g.Data, offset):
		return append(drafts, bitNotAllocated(g, s, users))
	case len(users) == 0 && !named && hasBit(g.Data, offset):
		return append(drafts, bitLeaked(g, s))
	default:
		return drafts
	}
}

// usersOf are the Services that use a port or an address, and whether one of type ExternalName names the address.
func (w *cache) usersOf(s subject) (users []*user, named bool) {
	if s.store == NodePorts {
		return w.ports[s.port], false
	}
	if spot := w.addresses[s.address]; spot != nil {
		for _, user := range spot.users {
			if user.externalName {
				named = true
			} else {
				users = append(users, user)
			}
		}
	}
	return users, named
}

// otherBitmapJudges tells whether an address is for the bitmap of the other family to judge, or would be if that could be read. Where
// there is none, the first bitmap says that nobody holds it.
func (w *cache) otherBitmapJudges(s subject, g *parsedBitmap) bool {
	if familyOf(g.bits.prefix.Addr()) == familyOf(s.address) {
		return false
	}
	other := w.bitmaps[SecondaryClusterIPs]
	if !w.has(SecondaryClusterIPs) || other != nil && other.fault.absent {
		return s.store != ClusterIPs
	}
	return s.store != ClusterIPs || !other.comparable() || familyOf(other.bits.prefix.Addr()) == familyOf(s.address)
}

// conflicts tells whether two use the same, or one uses a port twice with the same protocol.
func conflicts(s subject, users []*user) bool {
	return len(users) > 1 || s.store == NodePorts && slices.ContainsFunc(users, func(h *user) bool {
		return slices.Contains(h.ports, portUse{number: s.port, repeated: true})
	})
}

func newBitCandidate(s subject, code Code, d graceKind, users []*user) candidate {
	found := candidate{grace: d, Finding: Finding{
		Name: s.name(code), Code: code, Store: s.store, Subject: s.text(), Owners: ownersOf(users),
	}}
	if len(users) > 0 {
		found.incarnation = users[0].UID
	}
	for _, user := range users[:min(len(users), maxEvidence)] {
		found.Evidence = append(found.Evidence, serviceEvidence(user, false, "uses "+s.text(), ""))
	}
	return found
}

// bitNotAllocated: nothing keeps it from being given to another Service. To set the bit takes nothing from anybody.
func bitNotAllocated(g *parsedBitmap, s subject, users []*user) candidate {
	found := newBitCandidate(s, NotAllocated, graceMissing, users)
	found.Message = fmt.Sprintf("service %s uses %s %s, which is not allocated in range %s", users[0].Key, s.noun(), s.text(), g.Range)
	found.Evidence = append(found.Evidence, bitEvidence(s, "its bit is clear", "set it before another service gets it"))
	found.Repair = fmt.Sprintf("set the bit of %s %s", s.noun(), s.text())
	offset, _ := g.bit(s)
	found.Steps = []Step{{
		Verb: SetBit, Offset: offset, Range: g.Range, Owner: users[0].Owner, Reason: ReasonInUse, Detail: found.Message,
	}}
	return found.automatic()
}

// bitLeaked: no Service has it, for long enough.
func bitLeaked(g *parsedBitmap, s subject) candidate {
	found := newBitCandidate(s, Leaked, graceUnused, nil)
	found.Message = fmt.Sprintf("%s %s is allocated in range %s, and no service uses it", s.noun(), s.text(), g.Range)
	found.Evidence = append(found.Evidence, bitEvidence(s, "its bit is set, and no service uses it",
		"if it happens often, look for who removes finalizers of deleted services by a status update: kube-apiserver then frees nothing"))
	found.Repair = fmt.Sprintf("clear the bit of %s %s", s.noun(), s.text())
	offset, _ := g.bit(s)
	found.Steps = []Step{{
		Verb: ClearBit, Offset: offset, Range: g.Range, Sole: true, Reason: ReasonLeaked, Detail: found.Message,
	}}
	return found.automatic()
}

// duplicateOwner: only a person can say who must give way.
func duplicateOwner(s subject, users []*user) candidate {
	found := newBitCandidate(s, DuplicateOwner, graceNone, users)
	found.incarnation = ""
	if len(users) == 1 {
		found.Owners = append(found.Owners, users[0].Owner)
		found.Message = fmt.Sprintf("service %s uses %s %s twice with one protocol", users[0].Key, s.noun(), s.text())
		found.UnsafeReason = "which of its ports gives way is for a person to say: change the service"
		return found
	}
	found.Message = fmt.Sprintf("%d services use %s %s: %s is the rightful one, %s is not",
		len(users), s.noun(), s.text(), users[0].Key, users[1].Key)
	found.UnsafeReason = fmt.Sprintf("a person has to recreate all services of it but %s; deleting one of them frees it "+
		"although the others use it, and the audit allocates it again at once", users[0].Key)
	return found
}

func outOfRange(s subject, users []*user, why string) candidate {
	found := newBitCandidate(s, OutOfRange, graceWrong, users)
	found.incarnation = ""
	found.Message = fmt.Sprintf("service %s uses %s %s, and %s", users[0].Key, s.noun(), s.text(), why)
	found.Evidence = append(found.Evidence, rangeEvidence(s.store, why))
	found.UnsafeReason = "a person has to recreate the service, or widen the range"
	return found
}
