package allocation

import (
	"fmt"
	"strings"
)

// compare says what is wrong with one subject. It reads the world and changes nothing.
func (w *cache) compare(s subject) []candidate {
	switch {
	case !w.has(s.store):
		return nil
	case s.service != Key{}:
		return w.compareValues(s)
	case s.object != "":
		return w.compareMisnamed(s)
	case s.address.IsValid() && s.store == IPAddresses:
		return w.compareAddress(s)
	case s.address.IsValid(), s.port != 0:
		return w.compareBit(s)
	case s.store == IPAddresses:
		return w.compareCIDRs(s)
	default:
		return w.compareRange(s)
	}
}

// compareValues reports what a Service carries and nobody can read.
func (w *cache) compareValues(s subject) []candidate {
	user := w.services[s.service]
	if user == nil || !user.hasInvalid(s.store) {
		return nil
	}
	what := "no address"
	if s.store == NodePorts {
		what = "no port"
	}
	var quoted []string
	for _, text := range user.invalid(s.store) {
		quoted = append(quoted, fmt.Sprintf("%q", clip(text)))
	}
	return []candidate{{
		incarnation: user.UID,
		Finding: Finding{
			Name: s.name(Invalid), Code: Invalid, Store: s.store, Subject: s.text(),
			Message:      fmt.Sprintf("service %s carries %s, which is %s", user.Key, strings.Join(quoted, ", "), what),
			Owners:       []Owner{user.Owner},
			Evidence:     []Evidence{serviceEvidence(user, true, "carries "+strings.Join(quoted, ", "), "recreate the service")},
			UnsafeReason: "what the service should use instead is for a person to say: recreate it",
		},
	}}
}

// compareMisnamed reports an object whose name is no address. It takes nothing away from anybody.
func (w *cache) compareMisnamed(s subject) []candidate {
	object := w.misnamed[s.object]
	if object == nil {
		return nil
	}
	return []candidate{{
		incarnation: object.UID,
		Finding: Finding{
			Name: s.name(Unreadable), Code: Unreadable, Store: IPAddresses, Subject: s.text(),
			Message:      fmt.Sprintf("ipaddress %q is not named by an address in its canonical form", clip(object.Name)),
			Evidence:     []Evidence{objectEvidence(object, true, "its name is no address", "look for who wrote it")},
			UnsafeReason: "what it stands for cannot be told, so it is left as it is",
		},
	}}
}

// compareCIDRs says what is wrong with the ServiceCIDRs as a whole.
func (w *cache) compareCIDRs(s subject) []candidate {
	var drafts []candidate
	for _, cidr := range w.unreadableCIDRs {
		drafts = append(drafts, candidate{Finding: Finding{
			Name: findingName(Unreadable, s.store, "servicecidr", cidr), Code: Unreadable, Store: s.store, Subject: clip(cidr),
			Message:      fmt.Sprintf("servicecidr %s has a prefix that cannot be read: %s", clip(cidr), clip(strings.Join(w.cidrs[cidr].Prefixes, ", "))),
			Evidence:     []Evidence{rangeEvidence(s.store, "a prefix of servicecidr "+clip(cidr)+" is none")},
			UnsafeReason: "which addresses it holds cannot be told; until it can, no address is said to be out of range",
		}})
	}
	if len(w.prefixes) == 0 && len(w.unreadableCIDRs) == 0 {
		drafts = append(drafts, candidate{grace: graceWrong, Finding: Finding{
			Name: s.name(RangeMismatch), Code: RangeMismatch, Store: s.store,
			Message:      "there is no servicecidr, so no address can be allocated",
			Evidence:     []Evidence{rangeEvidence(s.store, "no servicecidr exists")},
			UnsafeReason: "kube-apiserver makes the default servicecidr from its own flags; see whether it can write it",
		}})
	}
	for _, family := range []string{FamilyIPv4, FamilyIPv6} {
		if full, taken := w.isFull(family); full {
			drafts = append(drafts, rangeFull(s.store, family, fmt.Sprintf("all %d addresses of family %s are allocated", taken, family)))
		}
	}
	return drafts
}

// isFull tells whether every ready prefix of a family is taken, and how many addresses that are.
func (w *cache) isFull(family string) (bool, int64) {
	var taken int64
	ready := false
	for _, r := range w.prefixes {
		if !r.ready || familyOf(r.prefix.Addr()) != family {
			continue
		}
		if r.allocated < capacityOf(r.prefix) {
			return false, 0
		}
		ready = true
		taken += r.allocated
	}
	return ready, taken
}

// compareRange says what is wrong with a bitmap as a whole.
func (w *cache) compareRange(s subject) []candidate {
	g := w.bitmaps[s.store]
	switch {
	case g == nil, g.fault.code == 0 && !g.comparable():
		return nil
	case g.fault.code != 0:
		return []candidate{{Finding: Finding{
			Name: s.name(g.fault.code), Code: g.fault.code, Store: s.store,
			Message:      g.fault.message,
			Evidence:     []Evidence{rangeEvidence(s.store, g.fault.message)},
			UnsafeReason: "a stored range is never rewritten: apiservers with another one could not allocate from it any more",
		}}}
	case g.allocated == g.bits.size:
		return []candidate{rangeFull(s.store, "", fmt.Sprintf("all %d of range %s are allocated", g.allocated, g.Range))}
	default:
		return nil
	}
}

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
