package allocation

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/wording"
)

// LiveState is what the caller read for one step, right before the write.
type LiveState struct {
	// Usage is of a quorum list of all Services, read after the IPAddress or the bitmap. Only if
	// Step.ReadsAllServices says so, all of them are needed; otherwise the Service for which the
	// step allocates is enough.
	Usage *Usage
	// IPAddress is the object with the step's name, nil if it does not exist. It matters for steps
	// of IPAddresses.
	IPAddress *IPAddress
	// Bitmap is the range as read. The write must require its revision. It matters for steps of
	// bitmaps.
	Bitmap Bitmap
}

// CheckFinding decides whether any of the steps of a finding would be applied now, from what was
// read for all of them.
func CheckFinding(f Finding, live LiveState) bool {
	for _, step := range f.Steps {
		if result, _ := Check(step, live); result != CheckUnneeded {
			return result == CheckPassed
		}
	}
	return false
}

// LiveObjects is what the caller read for one finding without steps.
type LiveObjects struct {
	// Usage is of a list of all Services, read last.
	Usage *Usage
	// IPAddress is the object of the finding's address, nil if it does not exist. CIDRs are all
	// ServiceCIDRs. Both matter for findings of IPAddresses.
	IPAddress *IPAddress
	CIDRs     []CIDR
	// Bitmaps are the ranges of ports, or those of addresses. They matter for findings of bitmaps.
	Bitmaps []Bitmap
}

// Reproduces reports whether a comparison of live objects has the same finding, about the same
// Service.
func (s Settings) Reproduces(f Finding, live LiveObjects) bool {
	x := NewIndex(s)
	for _, cidr := range live.CIDRs {
		x.PutCIDR(cidr)
	}
	for _, bitmap := range live.Bitmaps {
		x.PutBitmap(bitmap)
	}
	if live.IPAddress != nil {
		x.PutIPAddress(*live.IPAddress)
	}
	compared := subject{store: f.Store}
	x.cache.services = live.Usage.services
	if f.Store == NodePorts {
		port, _ := strconv.ParseUint(f.Subject, 10, 16) // the whole range has no number
		compared.port = int32(port)
		x.cache.ports[compared.port] = byAge(live.Usage.ports[compared.port])
	} else if address, ok := objectAddress(f.Subject); ok {
		compared.address = address
		x.cache.address(address).users = byAge(live.Usage.addresses[address])
	}
	return slices.ContainsFunc(x.cache.compare(compared), func(c candidate) bool {
		return c.Name == f.Name && slices.Equal(c.Owners[:min(len(c.Owners), 1)], f.Owners[:min(len(f.Owners), 1)])
	})
}

// Usage is what a list of Services uses. It is immutable and safe for concurrent use.
type Usage struct {
	services  map[Key]*user
	addresses map[netip.Addr][]*user
	ports     map[int32][]*user
}

// CountUsage returns what Services use.
func CountUsage(services []Service) *Usage {
	u := &Usage{services: map[Key]*user{}, addresses: map[netip.Addr][]*user{}, ports: map[int32][]*user{}}
	for _, service := range services {
		by := newUser(service)
		u.services[by.Key] = by
		for _, address := range by.addresses {
			u.addresses[address] = append(u.addresses[address], by)
		}
		for _, port := range by.ports {
			u.ports[port.number] = append(u.ports[port.number], by)
		}
	}
	return u
}

// CheckResult is the result of Check.
type CheckResult uint8

const (
	// CheckPassed: everything from which the step was planned still holds.
	CheckPassed CheckResult = iota + 1
	// CheckUnneeded: the step's result is already there.
	CheckUnneeded
	// CheckOutdated: something from which the step was planned changed. The finding must be planned
	// again.
	CheckOutdated
)

// Check decides whether a step may be applied now. The reason is one sentence, empty for
// CheckPassed.
func Check(s Step, live LiveState) (CheckResult, string) {
	check := live.checkIPAddress
	if s.Store.IsBitmap() {
		check = live.checkBit
	}
	if result, reason := check(s); result != CheckPassed {
		return result, reason
	}
	if reason := live.Usage.conflict(s); reason != "" {
		return CheckOutdated, reason
	}
	return CheckPassed, ""
}

func (live LiveState) checkIPAddress(s Step) (CheckResult, string) {
	is := live.IPAddress
	switch {
	case is == nil && s.Verb == planned.Create:
		return CheckPassed, ""
	case is == nil && s.Verb == planned.Delete:
		return CheckUnneeded, "there is no such ipaddress any more"
	case is == nil:
		return CheckOutdated, "there is no such ipaddress any more"
	case is.Name != s.Subject:
		return CheckOutdated, fmt.Sprintf("ipaddress %s was read for %s", wording.Clip(is.Name, maxValue), s.Subject)
	case s.Reason != ReasonLeaked && s.Reason != ReasonOrphan && isAsWanted(is, s):
		return CheckUnneeded, "the ipaddress is as it should be already"
	case s.Verb == planned.Create:
		return CheckOutdated, "there is an ipaddress of that name by now, of " + is.Parent.String()
	case is.UID != s.Guard.UID:
		return CheckOutdated, "there is another ipaddress of that name by now, of " + is.Parent.String()
	case is.Deleting || !s.wasPlannedFrom(is):
		return CheckOutdated, fmt.Sprintf("the ipaddress has changed: resourceVersion %s, planned from %s", is.ResourceVersion, s.Guard.ResourceVersion)
	default:
		return CheckPassed, ""
	}
}

// wasPlannedFrom reports whether the object has the content from which a step was planned. Anything
// else about it, such as an annotation, does not matter.
func (s Step) wasPlannedFrom(is *IPAddress) bool {
	if s.Verb == planned.Relabel {
		return s.Previous == nil && is.ResourceVersion == s.Guard.ResourceVersion ||
			s.Previous != nil && wording.Clip(is.ManagedBy, maxValue) == s.Previous.ManagedBy && wording.Clip(is.Family, maxValue) == s.Previous.Family
	}
	return is.Parent == s.Object.Parent && is.ManagedBy == s.Object.ManagedBy && is.Family == s.Object.Family
}

// isAsWanted reports whether the object is what the allocator writes for the step's owner.
func isAsWanted(is *IPAddress, s Step) bool {
	address, ok := objectAddress(is.Name)
	return ok && !is.Deleting && is.Parent == ServiceParent(s.Owner.Key) && is.ManagedBy == AllocatorName && is.Family == familyOf(address)
}

func (live LiveState) checkBit(s Step) (CheckResult, string) {
	bitmap := parseBitmap(live.Bitmap, s.Range)
	switch {
	case live.Bitmap.Store != s.Store:
		return CheckOutdated, fmt.Sprintf("the bitmap of %s was read for %s", live.Bitmap.Store, s.Store)
	case !bitmap.comparable():
		return CheckOutdated, bitmap.fault.message
	case s.Offset < 0 || s.Offset >= bitmap.bits.size || bitmap.subject(s.Offset).text() != s.Subject:
		return CheckOutdated, fmt.Sprintf("bit %d of range %s does not stand for %s", s.Offset, bitmap.Range, s.Subject)
	case bitmap.isSet(s.Offset) == (s.Verb == planned.SetBit):
		return CheckUnneeded, "the bit is as it should be already"
	default:
		return CheckPassed, ""
	}
}

// conflict returns why the users of the subject forbid a step, empty if they do not.
func (u *Usage) conflict(s Step) string {
	users, ok := u.usersOf(s)
	if !ok {
		return fmt.Sprintf("%q can be compared with nothing", wording.Clip(s.Subject, maxValue))
	}
	if s.Owner.Key == (Key{}) {
		return u.conflictWithFree(s, users)
	}
	used := false
	for _, by := range users {
		uses := s.Store == NodePorts || !by.externalName
		switch {
		case by.Owner == s.Owner:
			used = uses
		case by.Key == s.Owner.Key:
			return fmt.Sprintf("service %s is another one by now", by.Key)
		case s.Sole && (uses || s.Verb == planned.Delete): // a delete takes away first, so a Service that only names the address counts, too
			return fmt.Sprintf("service %s uses %s too", by.Key, s.Subject)
		}
	}
	if !used {
		return fmt.Sprintf("service %s does not use %s any more", s.Owner.Key, s.Subject)
	}
	return ""
}

// conflictWithFree returns why the subject must not be freed. A Service of type ExternalName counts
// as a user, because it may be about to use the address that it names. A list without any Service
// is not believed: default/kubernetes always exists.
func (u *Usage) conflictWithFree(s Step, users []*user) string {
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

func (u *Usage) usersOf(s Step) ([]*user, bool) {
	if s.Store == NodePorts {
		port, err := strconv.ParseUint(s.Subject, 10, 16)
		return u.ports[int32(port)], err == nil
	}
	address, ok := objectAddress(s.Subject)
	return u.addresses[address], ok
}
