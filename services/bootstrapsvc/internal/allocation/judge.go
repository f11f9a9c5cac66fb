package allocation

import (
	"fmt"
	"strings"
)

// judge says what is wrong with one subject. It reads the world and changes nothing.
func (w *world) judge(s subject) []draft {
	switch {
	case !w.has(s.store):
		return nil
	case s.service != Key{}:
		return w.judgeValues(s)
	case s.object != "":
		return w.judgeStranger(s)
	case s.address.IsValid() && s.store == IPAddresses:
		return w.judgeAddress(s)
	case s.address.IsValid(), s.port != 0:
		return w.judgeBit(s)
	case s.store == IPAddresses:
		return w.judgeCIDRs(s)
	default:
		return w.judgeRange(s)
	}
}

// judgeValues reports what a Service carries and nobody can read.
func (w *world) judgeValues(s subject) []draft {
	user := w.services[s.service]
	if user == nil || !user.bad(s.store) {
		return nil
	}
	what := "no address"
	if s.store == NodePorts {
		what = "no port"
	}
	var quoted []string
	for _, text := range user.badOf(s.store) {
		quoted = append(quoted, fmt.Sprintf("%q", clip(text)))
	}
	return []draft{{
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

// judgeStranger reports an object whose name is no address. It takes nothing away from anybody.
func (w *world) judgeStranger(s subject) []draft {
	object := w.strangers[s.object]
	if object == nil {
		return nil
	}
	return []draft{{
		incarnation: object.UID,
		Finding: Finding{
			Name: s.name(Unreadable), Code: Unreadable, Store: IPAddresses, Subject: s.text(),
			Message:      fmt.Sprintf("ipaddress %q is not named by an address in its canonical form", clip(object.Name)),
			Evidence:     []Evidence{objectEvidence(object, true, "its name is no address", "look for who wrote it")},
			UnsafeReason: "what it stands for cannot be told, so it is left as it is",
		},
	}}
}

// judgeCIDRs says what is wrong with the ServiceCIDRs as a whole.
func (w *world) judgeCIDRs(s subject) []draft {
	var drafts []draft
	for _, cidr := range w.unread {
		drafts = append(drafts, draft{Finding: Finding{
			Name: name(Unreadable, s.store, "servicecidr", cidr), Code: Unreadable, Store: s.store, Subject: clip(cidr),
			Message:      fmt.Sprintf("servicecidr %s has a prefix that cannot be read: %s", clip(cidr), clip(strings.Join(w.cidrs[cidr].Prefixes, ", "))),
			Evidence:     []Evidence{rangeEvidence(s.store, "a prefix of servicecidr "+clip(cidr)+" is none")},
			UnsafeReason: "which addresses it holds cannot be told; until it can, no address is said to be out of range",
		}})
	}
	if len(w.rooms) == 0 && len(w.unread) == 0 {
		drafts = append(drafts, draft{doubt: wrong, Finding: Finding{
			Name: s.name(RangeMismatch), Code: RangeMismatch, Store: s.store,
			Message:      "there is no servicecidr, so no address can be allocated",
			Evidence:     []Evidence{rangeEvidence(s.store, "no servicecidr exists")},
			UnsafeReason: "kube-apiserver makes the default servicecidr from its own flags; see whether it can write it",
		}})
	}
	for _, family := range []string{FamilyIPv4, FamilyIPv6} {
		if full, taken := w.full(family); full {
			drafts = append(drafts, fullDraft(s.store, family, fmt.Sprintf("all %d addresses of family %s are allocated", taken, family)))
		}
	}
	return drafts
}

// full tells whether every ready prefix of a family is taken, and how many addresses that are.
func (w *world) full(family string) (bool, int64) {
	var taken int64
	ready := false
	for _, r := range w.rooms {
		if !r.ready || familyOf(r.prefix.Addr()) != family {
			continue
		}
		if r.taken < roomOf(r.prefix) {
			return false, 0
		}
		ready = true
		taken += r.taken
	}
	return ready, taken
}

// judgeRange says what is wrong with a bitmap as a whole.
func (w *world) judgeRange(s subject) []draft {
	g := w.grids[s.store]
	switch {
	case g == nil, g.fault.code == 0 && !g.judged():
		return nil
	case g.fault.code != 0:
		return []draft{{Finding: Finding{
			Name: s.name(g.fault.code), Code: g.fault.code, Store: s.store,
			Message:      g.fault.message,
			Evidence:     []Evidence{rangeEvidence(s.store, g.fault.message)},
			UnsafeReason: "a stored range is never rewritten: apiservers with another one could not allocate from it any more",
		}}}
	case g.set == g.span.size:
		return []draft{fullDraft(s.store, "", fmt.Sprintf("all %d of range %s are allocated", g.set, g.Range))}
	default:
		return nil
	}
}

func fullDraft(store Store, family, message string) draft {
	var parts []string
	if family != "" {
		parts = append(parts, strings.ToLower(family))
	}
	return draft{Finding: Finding{
		Name: name(RangeFull, store, parts...), Code: RangeFull, Store: store, Subject: family,
		Message:      message,
		Evidence:     []Evidence{rangeEvidence(store, message)},
		UnsafeReason: "a wider range, or fewer services, is for a person to decide",
	}}
}
