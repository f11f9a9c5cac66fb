package allocation

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// LiveState is what was read for one step, right before it would be made.
type LiveState struct {
	// Services is a quorum list of all Services, read after the IPAddress or the bitmap. Freeing needs all; for a step that
	// allocates, those that use the subject are enough.
	Services []Service
	// Usage is the same, counted once for many steps by Tally; it is taken instead of Services where it is set.
	Usage *Usage
	// IPAddress is the object of that name; nil when there is none. For steps of IPAddresses.
	IPAddress *IPAddress
	// Bitmap is the range as read; the write must be made at its revision. For steps of bitmaps.
	Bitmap Bitmap
}

// Usage is what a list of Services uses. It does not change and may be read by any.
type Usage struct {
	services map[Key]*user
	named    map[netip.Addr][]*user
	ports    map[int32][]*user
}

// CountUsage counts what Services use.
func CountUsage(services []Service) *Usage {
	u := &Usage{services: map[Key]*user{}, named: map[netip.Addr][]*user{}, ports: map[int32][]*user{}}
	for _, service := range services {
		h := newUser(service)
		u.services[h.Key] = h
		for _, address := range h.addresses {
			u.named[address] = append(u.named[address], h)
		}
		for _, port := range h.ports {
			u.ports[port.number] = append(u.ports[port.number], h)
		}
	}
	return u
}

// CheckResult is what Check says.
type CheckResult uint8

const (
	// CheckPassed: everything that the step was planned from holds. Do it.
	CheckPassed CheckResult = iota + 1
	// CheckUnneeded: what the step would bring about is so already.
	CheckUnneeded
	// CheckOutdated: something that it was planned from has changed. Leave it, and plan again.
	CheckOutdated
)

// Check says whether a step may be made now, and why not. The reason is one sentence, and empty for Go.
func Check(s Step, live LiveState) (CheckResult, string) {
	if live.Usage == nil {
		live.Usage = CountUsage(live.Services)
	}
	check := live.checkIPAddress
	if s.Store.IsBitmap() {
		check = live.checkBit
	}
	if outcome, why := check(s); outcome != CheckPassed {
		return outcome, why
	}
	if why := live.Usage.conflict(s); why != "" {
		return CheckOutdated, why
	}
	return CheckPassed, ""
}

// checkIPAddress compares the object that a step is about with what it was planned from.
func (live LiveState) checkIPAddress(s Step) (CheckResult, string) {
	is := live.IPAddress
	switch {
	case is == nil && s.Verb == Create:
		return CheckPassed, ""
	case is == nil && s.Verb == Delete:
		return CheckUnneeded, "there is no such ipaddress any more"
	case is == nil:
		return CheckOutdated, "there is no such ipaddress any more"
	case is.Name != s.Subject:
		return CheckOutdated, fmt.Sprintf("ipaddress %s was read for %s", clip(is.Name), s.Subject)
	case s.Reason != ReasonLeaked && s.Reason != ReasonOrphan && isAsWanted(is, s):
		return CheckUnneeded, "the ipaddress is as it should be already"
	case s.Verb == Create:
		return CheckOutdated, "there is an ipaddress of that name by now, of " + is.Parent.String()
	case is.UID != s.Guard.UID || is.ResourceVersion != s.Guard.ResourceVersion:
		return CheckOutdated, fmt.Sprintf("the ipaddress has changed: resourceVersion %s, planned from %s", is.ResourceVersion, s.Guard.ResourceVersion)
	default:
		return CheckPassed, ""
	}
}

// isAsWanted tells whether the object is what the step's owner should have.
func isAsWanted(is *IPAddress, s Step) bool {
	address, ok := objectAddress(is.Name)
	return ok && !is.Deleting && is.Parent == ServiceParent(s.Owner.Key) && is.ManagedBy == AllocatorName && is.Family == familyOf(address)
}

// checkBit compares the bit that a step is about with what it was planned from.
func (live LiveState) checkBit(s Step) (CheckResult, string) {
	g := parseBitmap(live.Bitmap, s.Range)
	switch {
	case live.Bitmap.Store != s.Store:
		return CheckOutdated, fmt.Sprintf("the bitmap of %s was read for %s", live.Bitmap.Store, s.Store)
	case !g.comparable():
		return CheckOutdated, g.fault.message
	case s.Offset < 0 || s.Offset >= g.bits.size || g.subject(s.Offset).text() != s.Subject:
		return CheckOutdated, fmt.Sprintf("bit %d of range %s does not stand for %s", s.Offset, g.Range, s.Subject)
	case hasBit(g.Data, s.Offset) == (s.Verb == SetBit):
		return CheckUnneeded, "the bit is as it should be already"
	default:
		return CheckPassed, ""
	}
}

// conflict says which Service speaks against a step; empty when none does.
func (u *Usage) conflict(s Step) string {
	users, ok := u.users(s)
	if !ok {
		return fmt.Sprintf("%q can be compared with nothing", clip(s.Subject))
	}
	if s.Owner.Key == (Key{}) {
		return u.checkUnused(s, users)
	}
	used := false
	for _, h := range users {
		uses := s.Store == NodePorts || !h.externalName
		switch {
		case h.Owner == s.Owner:
			used = uses
		case h.Key == s.Owner.Key:
			return fmt.Sprintf("service %s is another one by now", h.Key)
		case s.Sole && (uses || s.Verb == Delete): // what takes away first minds those that only name it, too
			return fmt.Sprintf("service %s uses %s too", h.Key, s.Subject)
		}
	}
	if !used {
		return fmt.Sprintf("service %s does not use %s any more", s.Owner.Key, s.Subject)
	}
	return ""
}

// checkUnused says why something may not be freed. Here a Service of type ExternalName counts, too: it may be about to use what
// it names. A list without any Service is not believed, for default/kubernetes is always there.
func (u *Usage) checkUnused(s Step, users []*user) string {
	switch {
	case len(u.services) == 0:
		return "no service at all was listed, which cannot be"
	case len(users) > 0:
		return fmt.Sprintf("service %s uses %s", users[0].Key, s.Subject)
	case s.Reason == ReasonOrphan && u.services[s.Object.Parent.Key()] != nil:
		return s.Object.Parent.String() + " exists by now"
	default:
		return ""
	}
}

// users are the Services that name what a step is about, of whatever type.
func (u *Usage) users(s Step) ([]*user, bool) {
	if s.Store == NodePorts {
		port, err := strconv.ParseUint(s.Subject, 10, 16)
		return u.ports[int32(port)], err == nil
	}
	address, ok := objectAddress(s.Subject)
	return u.named[address], ok
}

// Write returns the bitmap's data after steps, in upstream's encoding without leading zero bytes. The bitmap given stays
// as it is. It refuses steps of other stores or ranges.
func (b Bitmap) Write(steps []Step) ([]byte, error) {
	g := parseBitmap(b, "")
	if !g.comparable() {
		return nil, fmt.Errorf("write %s: %s", b.Store, g.fault.message)
	}
	grown := make([]byte, (g.bits.size+7)/8)
	copy(grown[max(len(grown)-len(b.Data), 0):], b.Data[max(len(b.Data)-len(grown), 0):])
	for _, s := range steps {
		if s.Store != b.Store || s.Range != b.Range || s.Offset < 0 || s.Offset >= g.bits.size {
			return nil, fmt.Errorf("write %s with range %s: step %s %s of %s with range %q is of another one",
				b.Store, b.Range, s.Verb, s.Subject, s.Store, clip(s.Range))
		}
		mask := byte(1) << (s.Offset % 8)
		switch at := len(grown) - 1 - s.Offset/8; s.Verb {
		case SetBit:
			grown[at] |= mask
		case ClearBit:
			grown[at] &^= mask
		default:
			return nil, fmt.Errorf("write %s: %s is no step of a bitmap", b.Store, s.Verb)
		}
	}
	first := slices.IndexFunc(grown, func(b byte) bool { return b != 0 })
	if first < 0 {
		return []byte{}, nil
	}
	return grown[first:], nil
}
