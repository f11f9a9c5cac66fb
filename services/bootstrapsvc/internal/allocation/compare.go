package allocation

import (
	"fmt"
	"strings"

	"github.com/trivet-dev/trivet/internal/wording"
)

// candidate is a finding before its grace period is considered.
type candidate struct {
	Finding
	grace graceKind
	// incarnation identifies the object or Service. The grace period restarts when another one of
	// the same name replaces it.
	incarnation string
}

func (c candidate) automatic() candidate {
	c.Safe = true
	return c.withStepFields()
}

func (c candidate) needsApproval(why string) candidate {
	c.UnsafeReason = why
	return c.withStepFields()
}

func (c candidate) withStepFields() candidate {
	for i := range c.Steps {
		c.Steps[i].Finding, c.Steps[i].Safe = c.Name, c.Safe
		c.Steps[i].Store, c.Steps[i].Subject = c.Store, c.Subject
	}
	return c
}

// compare returns what is wrong with one subject. It does not modify the cache.
func (c *cache) compare(s subject) []candidate {
	switch {
	case !c.has(s.store):
		return nil
	case s.service != Key{}:
		return c.compareValues(s)
	case s.object != "":
		return c.compareMisnamed(s)
	case s.address.IsValid() && s.store == IPAddresses:
		return c.compareAddress(s)
	case s.address.IsValid(), s.port != 0:
		return c.compareBit(s)
	case s.store == IPAddresses:
		return c.compareCIDRs(s)
	default:
		return c.compareRange(s)
	}
}

func (c *cache) compareValues(s subject) []candidate {
	u := c.services[s.service]
	if u == nil || len(u.invalid(s.store)) == 0 {
		return nil
	}
	var quoted []string
	for _, text := range u.invalid(s.store) {
		quoted = append(quoted, fmt.Sprintf("%q", wording.Clip(text, maxValue)))
	}
	carries, wanted := "carries "+strings.Join(quoted, ", "), s.noun()
	if s.store == IPAddresses {
		wanted = "address in its canonical form"
	}
	return []candidate{{
		incarnation: u.UID,
		Finding: Finding{
			Name: s.findingName(Invalid), Code: Invalid, Store: s.store, Subject: s.text(),
			Message:      fmt.Sprintf("service %s %s, which is no %s", u.Key, carries, wanted),
			Owners:       []Owner{u.Owner},
			Evidence:     []Evidence{serviceEvidence(u, true, carries, "recreate the service")},
			UnsafeReason: "what the service should use instead is for a person to say: recreate it",
		},
	}}
}

// compareMisnamed reports an object whose name is not an address. Such an object allocates no
// address.
func (c *cache) compareMisnamed(s subject) []candidate {
	object := c.misnamed[s.object]
	if object == nil {
		return nil
	}
	return []candidate{{
		incarnation: object.UID,
		Finding: Finding{
			Name: s.findingName(Unreadable), Code: Unreadable, Store: IPAddresses, Subject: s.text(),
			Message:      fmt.Sprintf("ipaddress %q is not named by an address in its canonical form", wording.Clip(object.Name, maxValue)),
			Evidence:     []Evidence{objectEvidence(object, true, "its name is no address", "find out what wrote it")},
			UnsafeReason: "what it stands for cannot be told, so it is left as it is",
		},
	}}
}

func (c *cache) compareCIDRs(s subject) []candidate {
	var found []candidate
	for _, name := range c.unreadableCIDRs {
		prefixes := wording.Clip(strings.Join(c.cidrs[name].Prefixes, ", "), maxValue)
		found = append(found, candidate{Finding: Finding{
			Name: findingName(Unreadable, s.store, "servicecidr", name), Code: Unreadable, Store: s.store, Subject: wording.Clip(name, maxValue),
			Message:      fmt.Sprintf("servicecidr %s has a prefix that cannot be read: %s", wording.Clip(name, maxValue), prefixes),
			Evidence:     []Evidence{rangeEvidence(s.store, "a prefix of servicecidr "+wording.Clip(name, maxValue)+" is none")},
			UnsafeReason: "which addresses it holds cannot be told; until it can, no address is said to be out of range",
		}})
	}
	if len(c.prefixes) == 0 && len(c.unreadableCIDRs) == 0 {
		found = append(found, candidate{grace: graceWrong, Finding: Finding{
			Name: s.findingName(RangeMismatch), Code: RangeMismatch, Store: s.store,
			Message:      "there is no servicecidr, so no address can be allocated",
			Evidence:     []Evidence{rangeEvidence(s.store, "no servicecidr exists")},
			UnsafeReason: "kube-apiserver makes the default servicecidr from its own flags; see whether it can write it",
		}})
	}
	for _, family := range []string{FamilyIPv4, FamilyIPv6} {
		if full, allocated := c.isFull(family); full {
			message := fmt.Sprintf("all %d addresses of family %s are allocated", allocated, family)
			found = append(found, rangeFull(s.store, family, message))
		}
	}
	return found
}

func (c *cache) compareRange(s subject) []candidate {
	bitmap := c.bitmaps[s.store]
	switch {
	case bitmap == nil:
		return nil
	case bitmap.fault.code != 0:
		return []candidate{{Finding: Finding{
			Name: s.findingName(bitmap.fault.code), Code: bitmap.fault.code, Store: s.store,
			Message:      bitmap.fault.message,
			Evidence:     []Evidence{rangeEvidence(s.store, bitmap.fault.message)},
			UnsafeReason: "a stored range is never rewritten: apiservers with another one could not allocate from it any more",
		}}}
	case bitmap.comparable() && bitmap.allocated == bitmap.bits.size:
		message := fmt.Sprintf("all %d of range %s are allocated", bitmap.allocated, bitmap.Range)
		return []candidate{rangeFull(s.store, "", message)}
	default:
		return nil
	}
}

// rangeFull reports a range without a free address or port. An empty family means the only range of
// the store.
func rangeFull(store Store, family, message string) candidate {
	var parts []string
	if family != "" {
		parts = append(parts, strings.ToLower(family))
	}
	return candidate{Finding: Finding{
		Name: findingName(RangeFull, store, parts...), Code: RangeFull, Store: store, Subject: family,
		Message:      message,
		Evidence:     []Evidence{rangeEvidence(store, message)},
		UnsafeReason: "a wider range, or fewer services, is for a person to decide",
	}}
}

// duplicateOwner reports several users of one subject, or one that uses a port twice. Only a person
// can decide which one keeps it.
func duplicateOwner(s subject, users []*user) candidate {
	found := candidate{grace: graceNone, Finding: newFinding(s, DuplicateOwner, users)}
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
	found := candidate{grace: graceWrong, Finding: newFinding(s, OutOfRange, users)}
	found.Message = fmt.Sprintf("service %s uses %s %s, and %s", users[0].Key, s.noun(), s.text(), why)
	found.Evidence = append(found.Evidence, rangeEvidence(s.store, why))
	found.UnsafeReason = "a person has to recreate the service, or widen the range"
	return found
}

func newFinding(s subject, code Code, users []*user) Finding {
	return Finding{
		Name: s.findingName(code), Code: code, Store: s.store, Subject: s.text(),
		Owners: ownersOf(users), Evidence: useEvidence(users, s.text()),
	}
}
