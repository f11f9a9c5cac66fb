package allocation

import (
	"fmt"
	"slices"
)

// addressFacts is an address with everything that is judged together.
type addressFacts struct {
	subject
	// users use it, the rightful one first.
	users []*user
	// externallyNamed tells that a Service of type ExternalName still names it.
	externallyNamed bool
	object          *IPAddress
	// parent is the Service in whose name it is allocated; nil when there is none.
	parent *user
	// inside tells whether a ServiceCIDR holds it, known whether that can be told.
	inside, known bool
}

func (w *cache) facts(s subject) addressFacts {
	m := addressFacts{subject: s}
	spot := w.addresses[s.address]
	if spot == nil {
		return m
	}
	m.object = spot.object
	if m.object != nil && m.object.Parent.IsService() {
		m.parent = w.services[m.object.Parent.Key()]
	}
	for _, user := range spot.users {
		switch {
		case user.externalName:
			m.externallyNamed = true
		case user == m.parent:
			m.users = slices.Insert(m.users, 0, user)
		default:
			m.users = append(m.users, user)
		}
	}
	m.inside, m.known = w.inRange(s.address)
	return m
}

// compareAddress says what is wrong with an address and its IPAddress object. One thing is said once: what is out of range
// is not missing too, and what is replaced gets its labels with it.
func (w *cache) compareAddress(s subject) []candidate {
	m := w.facts(s)
	if len(m.users) == 0 {
		return m.compareUnused()
	}
	var drafts []candidate
	if len(m.users) > 1 {
		drafts = append(drafts, m.duplicateOwner())
	}
	switch {
	case !m.inside && m.known:
		return append(drafts, outOfRange(m.subject, m.users, "no servicecidr holds it"))
	case m.object == nil:
		return append(drafts, m.notAllocated())
	case m.object.Deleting: // Its name is taken until it is gone. Then it is missing.
		return drafts
	case m.parent != m.users[0]:
		return append(drafts, m.wrongReference())
	case !m.hasAllocatorLabels():
		return append(drafts, m.wrongLabels())
	default:
		return drafts
	}
}

// hasAllocatorLabels tells whether the object has the labels that the allocator gives.
func (m addressFacts) hasAllocatorLabels() bool {
	return m.object.ManagedBy == AllocatorName && m.object.Family == familyOf(m.address)
}

// wantedObject is the object as the allocator would have written it.
func (m addressFacts) wantedObject() IPAddress {
	return IPAddress{
		Name:      m.text(),
		Parent:    ServiceParent(m.users[0].Key),
		ManagedBy: AllocatorName,
		Family:    familyOf(m.address),
	}
}

func (m addressFacts) draft(code Code, d graceKind) candidate {
	found := candidate{grace: d, Finding: Finding{
		Name: m.name(code), Code: code, Store: IPAddresses, Subject: m.text(), Owners: ownersOf(m.users),
	}}
	if m.object != nil {
		found.incarnation = m.object.UID
	}
	if len(m.users) > 0 {
		found.incarnation += " " + m.users[0].UID
	}
	for _, user := range m.users[:min(len(m.users), maxEvidence)] {
		found.Evidence = append(found.Evidence, serviceEvidence(user, false, "uses "+m.text(), ""))
	}
	return found
}

// duplicateOwner: several use it, and the one in whose name it is allocated is in the right, else the oldest.
func (m addressFacts) duplicateOwner() candidate {
	found := duplicateOwner(m.subject, m.users)
	if m.object != nil {
		found.Evidence = append(found.Evidence, objectEvidence(m.object, false, "its parent is "+m.object.Parent.String(), ""))
	}
	return found
}

// notAllocated: nothing keeps the address from being given to another Service.
func (m addressFacts) notAllocated() candidate {
	found := m.draft(NotAllocated, graceMissing)
	found.Message = fmt.Sprintf("service %s uses %s, for which there is no ipaddress", m.users[0].Key, m.text())
	found.Evidence = append(found.Evidence, Evidence{
		Code: AddressObject, Broken: true, Source: "ipaddress",
		Finding: "there is no ipaddress " + m.text(), Next: "allocate it before another service gets it",
	})
	if !m.inside {
		found.UnsafeReason = "whether a servicecidr holds the address cannot be told"
		return found
	}
	found.Repair = fmt.Sprintf("create ipaddress %s in the name of service %s", m.text(), m.users[0].Key)
	found.Steps = []Step{{
		Verb: Create, Object: m.wantedObject(), Guard: Guard{Absent: true}, Owner: m.users[0].Owner,
		Sole: len(m.users) == 1, Reason: ReasonInUse, Detail: found.Message,
	}}
	if len(m.users) > 1 {
		found.Steps[0].Risk = "the other services that use it stay duplicates, and whoever deletes this one frees it for a moment"
		return found.needsPerson(fmt.Sprintf("%d services use it, and whose it is is for a person to say", len(m.users)))
	}
	return found.automatic()
}

// wrongReference: the owner is another than who uses it. kube-apiserver deletes such an object, and the address is free.
func (m addressFacts) wrongReference() candidate {
	found := m.draft(WrongReference, graceWrong)
	found.Message = fmt.Sprintf("service %s uses %s, which is allocated in the name of %s",
		m.users[0].Key, m.text(), m.object.Parent)
	found.Evidence = append(found.Evidence,
		objectEvidence(m.object, true, "its parent is "+m.object.Parent.String(), "allocate it in the name of its user"))
	found.Evidence = append(found.Evidence, m.parentEvidence()...)
	if reason := m.foreignReason(); reason != "" {
		found.UnsafeReason = reason
		return found
	}
	if !m.inside {
		found.UnsafeReason = "whether a servicecidr holds the address cannot be told"
		return found
	}
	found.Repair = fmt.Sprintf("delete ipaddress %s and create it in the name of service %s", m.text(), m.users[0].Key)
	found.Steps = []Step{{
		Verb: Delete, Object: *m.object, Guard: guardOf(m.object), Owner: m.users[0].Owner,
		Sole: len(m.users) == 1, Reason: ReasonReference, Detail: found.Message,
		Risk: "between the delete and the create the address is free, for as long as one request takes",
	}, {
		Verb: Create, Object: m.wantedObject(), Guard: Guard{Absent: true}, Owner: m.users[0].Owner,
		Sole: len(m.users) == 1, Reason: ReasonReference, Detail: found.Message,
	}}
	switch {
	case len(m.users) > 1:
		return found.needsPerson(fmt.Sprintf("%d services use it, and whose it is is for a person to say", len(m.users)))
	case m.externallyNamed:
		return found.needsPerson("a service of type ExternalName names it too, and may be about to use it")
	default:
		return found.automatic()
	}
}

// foreignReason says why the object is not the allocator's to replace; empty when it is.
func (m addressFacts) foreignReason() string {
	switch {
	case m.object.ManagedBy != AllocatorName:
		return fmt.Sprintf("it is labelled as managed by %q, and what others keep is not touched", clip(m.object.ManagedBy))
	case !m.object.Parent.IsService():
		return "its parent is no service, and what others keep is not touched"
	default:
		return ""
	}
}

// wrongLabels: with wrong labels kube-apiserver does not see it as its own, and replaces it at its next pass.
func (m addressFacts) wrongLabels() candidate {
	found := m.draft(WrongLabels, graceWrong)
	found.Message = fmt.Sprintf("ipaddress %s of service %s is labelled as %q and managed by %q, and should be as %q and by %q",
		m.text(), m.users[0].Key, clip(m.object.Family), clip(m.object.ManagedBy), familyOf(m.address), AllocatorName)
	found.Evidence = append(found.Evidence, objectEvidence(m.object, true, "its labels are not the allocator's", "correct them"))
	if m.object.ManagedBy != "" && m.object.ManagedBy != AllocatorName {
		found.UnsafeReason = m.foreignReason()
		return found
	}
	found.Repair = "correct the labels of ipaddress " + m.text()
	want := m.wantedObject()
	want.UID, want.ResourceVersion, want.Created = m.object.UID, m.object.ResourceVersion, m.object.Created
	found.Steps = []Step{{
		Verb: Relabel, Object: want, Guard: guardOf(m.object), Owner: m.users[0].Owner,
		Reason: ReasonLabels, Detail: found.Message,
	}}
	return found.automatic()
}

// compareUnused judges an object of which no Service uses the address.
func (m addressFacts) compareUnused() []candidate {
	switch {
	case m.object == nil, m.object.Deleting, m.externallyNamed:
		return nil
	case m.object.ManagedBy == AllocatorName && !m.object.Parent.IsService():
		return []candidate{m.wrongParentKind()}
	case m.object.ManagedBy != "" && m.object.ManagedBy != AllocatorName, !m.object.Parent.IsService():
		return nil // Somebody else's.
	case m.parent == nil:
		return []candidate{m.unusedObject(Orphan, ReasonOrphan,
			fmt.Sprintf("%s is allocated in the name of %s, which does not exist", m.text(), m.object.Parent))}
	default:
		return []candidate{m.unusedObject(Leaked, ReasonLeaked,
			fmt.Sprintf("%s is allocated in the name of %s, which does not use it, and nobody else does", m.text(), m.object.Parent))}
	}
}

// wrongParentKind: the allocator's object was given to something that is no Service.
func (m addressFacts) wrongParentKind() candidate {
	found := m.draft(WrongReference, graceWrong)
	found.Message = fmt.Sprintf("ipaddress %s is the allocator's, and its parent is %s", m.text(), m.object.Parent)
	found.Evidence = append(found.Evidence, objectEvidence(m.object, true, "its parent is no service", "ask whose it is"))
	found.UnsafeReason = m.foreignReason()
	return found
}

// unusedObject: nobody uses it, for long enough.
func (m addressFacts) unusedObject(code Code, reason Reason, message string) candidate {
	found := m.draft(code, graceUnused)
	found.Message = message
	found.Evidence = append(found.Evidence, objectEvidence(m.object, true, "no service uses its address", ""))
	found.Evidence = append(found.Evidence, m.parentEvidence()...)
	if m.object.ManagedBy == "" {
		found.UnsafeReason = "it does not carry the allocator's label, so whose it is cannot be told"
		return found
	}
	found.Repair = "delete ipaddress " + m.text()
	found.Steps = []Step{{
		Verb: Delete, Object: *m.object, Guard: guardOf(m.object), Sole: true, Reason: reason, Detail: message,
	}}
	return found.automatic()
}

func guardOf(object *IPAddress) Guard {
	return Guard{UID: object.UID, ResourceVersion: object.ResourceVersion}
}
