package allocation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/wording"
)

// addressFacts is everything that is compared about one address.
type addressFacts struct {
	subject
	// users use the address. The first is the rightful owner: the parent of the object if it is a
	// user, otherwise the oldest user.
	users []*user
	// externallyNamed reports that a Service of type ExternalName still names the address.
	externallyNamed bool
	object          *IPAddress
	// parent is the Service that is the object's parent, nil if it does not exist.
	parent *user
	// inside reports whether a ServiceCIDR contains the address. known reports whether that can be
	// determined.
	inside, known bool
}

func (c *cache) facts(s subject) addressFacts {
	f := addressFacts{subject: s}
	found := c.addresses[s.address]
	if found == nil {
		return f
	}
	f.object = found.object
	if f.object != nil && f.object.Parent.IsService() {
		f.parent = c.services[f.object.Parent.Key()]
	}
	for _, u := range found.users {
		switch {
		case u.externalName:
			f.externallyNamed = true
		case u == f.parent:
			f.users = slices.Insert(f.users, 0, u)
		default:
			f.users = append(f.users, u)
		}
	}
	f.inside, f.known = c.inRange(s.address)
	return f
}

// compareAddress reports what is wrong with an address and its IPAddress object. It reports one
// cause once: an address out of range is not reported as unallocated too, and a replaced object
// gets its labels with the replacement.
func (c *cache) compareAddress(s subject) []candidate {
	f := c.facts(s)
	if len(f.users) == 0 {
		return f.compareUnused()
	}
	var found []candidate
	if len(f.users) > 1 {
		found = append(found, f.duplicateOwner())
	}
	switch {
	case !f.inside && f.known:
		return append(found, outOfRange(f.subject, f.users, "no servicecidr holds it"))
	case f.object == nil:
		return append(found, f.notAllocated())
	case f.object.Deleting: // The name is taken until the object is gone.
		return append(found, f.keptObject(NotAllocated, fmt.Sprintf("service %s uses %s", f.users[0].Key, f.text())))
	case f.parent != f.users[0]:
		return append(found, f.wrongReference())
	case !f.hasAllocatorLabels():
		return append(found, f.wrongLabels())
	default:
		return found
	}
}

func (f addressFacts) compareUnused() []candidate {
	switch {
	case f.object == nil, f.externallyNamed, f.object.Deleting && f.object.ManagedBy != AllocatorName:
		return nil
	case f.object.Deleting:
		return []candidate{f.keptObject(Leaked, "no service uses "+f.text())}
	case f.object.ManagedBy == AllocatorName && !f.object.Parent.IsService():
		return []candidate{f.wrongParentKind()}
	case f.object.ManagedBy != "" && f.object.ManagedBy != AllocatorName, !f.object.Parent.IsService():
		return nil // another manager's object
	case f.parent == nil:
		return []candidate{f.unusedObject(Orphan, ReasonOrphan,
			fmt.Sprintf("%s is allocated in the name of %s, which does not exist", f.text(), f.object.Parent))}
	default:
		return []candidate{f.unusedObject(Leaked, ReasonLeaked,
			fmt.Sprintf("%s is allocated in the name of %s, which does not use it, and no other service does", f.text(), f.object.Parent))}
	}
}

func (f addressFacts) duplicateOwner() candidate {
	found := duplicateOwner(f.subject, f.users)
	if f.object != nil {
		found.Evidence = append(found.Evidence, objectEvidence(f.object, false, "its parent is "+f.object.Parent.String(), ""))
	}
	return found
}

// notAllocated reports an address without an object: another Service may get it.
func (f addressFacts) notAllocated() candidate {
	found := f.candidate(NotAllocated, graceMissing)
	found.Message = fmt.Sprintf("service %s uses %s, for which there is no ipaddress", f.users[0].Key, f.text())
	found.Evidence = append(found.Evidence, Evidence{
		Code: AddressObject, Broken: true, Source: "ipaddress",
		Finding: "there is no ipaddress " + f.text(), Next: "allocate it before another service gets it",
	})
	if !f.inside {
		found.UnsafeReason = "whether a servicecidr holds the address cannot be told"
		return found
	}
	found.Repair = fmt.Sprintf("create ipaddress %s in the name of service %s", f.text(), f.users[0].Key)
	create := f.createStep(ReasonInUse, found.Message)
	if len(f.users) > 1 {
		create.Risk = "the other services that use it stay duplicates, and the deletion of this one frees it for a moment"
		found.Steps = []Step{create}
		return found.needsApproval(f.ambiguousOwner())
	}
	found.Steps = []Step{create}
	return found.automatic()
}

// wrongReference reports an object whose parent is not the user of the address. kube-apiserver
// deletes such an object, which frees the address.
func (f addressFacts) wrongReference() candidate {
	found := f.candidate(WrongReference, graceWrong)
	found.Message = fmt.Sprintf("service %s uses %s, which is allocated in the name of %s",
		f.users[0].Key, f.text(), f.object.Parent)
	found.Evidence = append(found.Evidence,
		objectEvidence(f.object, true, "its parent is "+f.object.Parent.String(), "allocate it in the name of its user"))
	found.Evidence = append(found.Evidence, f.parentEvidence()...)
	if reason := f.foreignReason(); reason != "" {
		found.UnsafeReason = reason
		return found
	}
	if !f.inside {
		found.UnsafeReason = "whether a servicecidr holds the address cannot be told"
		return found
	}
	found.Repair = fmt.Sprintf("delete ipaddress %s and create it in the name of service %s", f.text(), f.users[0].Key)
	found.Steps = []Step{{
		Verb: planned.Delete, Object: *f.object, Guard: guardOf(f.object), Owner: f.users[0].Owner,
		Sole: len(f.users) == 1, Reason: ReasonReference, Detail: found.Message,
		Risk: "between the delete and the create the address is free, for as long as one request takes",
	}, f.createStep(ReasonReference, found.Message)}
	switch {
	case len(f.users) > 1:
		return found.needsApproval(f.ambiguousOwner())
	case f.externallyNamed:
		return found.needsApproval("a service of type ExternalName names it too, and may be about to use it")
	default:
		return found.automatic()
	}
}

// wrongLabels reports an object without the allocator's labels. kube-apiserver does not recognize
// it as its own and replaces it at its next pass.
func (f addressFacts) wrongLabels() candidate {
	found := f.candidate(WrongLabels, graceWrong)
	found.Message = fmt.Sprintf("ipaddress %s of service %s is labelled as %q and managed by %q, and should be as %q and by %q",
		f.text(), f.users[0].Key, wording.Clip(f.object.Family, maxValue), wording.Clip(f.object.ManagedBy, maxValue), familyOf(f.address), AllocatorName)
	found.Evidence = append(found.Evidence, objectEvidence(f.object, true, "its labels are not the allocator's", "correct them"))
	if f.object.ManagedBy != "" && f.object.ManagedBy != AllocatorName {
		found.UnsafeReason = f.foreignReason()
		return found
	}
	found.Repair = "correct the labels of ipaddress " + f.text()
	wanted := f.wantedObject()
	wanted.UID, wanted.ResourceVersion, wanted.Created = f.object.UID, f.object.ResourceVersion, f.object.Created
	found.Steps = []Step{{
		Verb: planned.Relabel, Object: wanted, Previous: &Labels{ManagedBy: wording.Clip(f.object.ManagedBy, maxValue), Family: wording.Clip(f.object.Family, maxValue)}, Guard: guardOf(f.object), Owner: f.users[0].Owner,
		Reason: ReasonLabels, Detail: found.Message,
	}}
	return found.automatic()
}

func (f addressFacts) wrongParentKind() candidate {
	found := f.candidate(WrongReference, graceWrong)
	found.Message = fmt.Sprintf("ipaddress %s is the allocator's, and its parent is %s", f.text(), f.object.Parent)
	found.Evidence = append(found.Evidence, objectEvidence(f.object, true, "its parent is no service", "ask whose it is"))
	found.UnsafeReason = f.foreignReason()
	return found
}

func (f addressFacts) unusedObject(code Code, reason Reason, message string) candidate {
	found := f.candidate(code, graceUnused)
	found.Message = message
	found.Evidence = append(found.Evidence, objectEvidence(f.object, true, "no service uses its address", ""))
	found.Evidence = append(found.Evidence, f.parentEvidence()...)
	if f.object.ManagedBy == "" {
		found.UnsafeReason = "it does not carry the allocator's label, so whose it is cannot be told"
		return found
	}
	found.Repair = "delete ipaddress " + f.text()
	found.Steps = []Step{{
		Verb: planned.Delete, Object: *f.object, Guard: guardOf(f.object), Sole: true, Reason: reason, Detail: message,
	}}
	return found.automatic()
}

// keptObject reports an object that is being deleted and that finalizers keep. The allocator sets
// none.
func (f addressFacts) keptObject(code Code, use string) candidate {
	found := f.candidate(code, graceKept)
	kept := fmt.Sprintf("it is being deleted, and finalizers keep it: %s", wording.Clip(strings.Join(f.object.Finalizers, ", "), maxValue))
	found.Message = use + ", and of its ipaddress: " + kept
	found.Evidence = append(found.Evidence, objectEvidence(f.object, true, kept, "find out what sets these finalizers"))
	found.UnsafeReason = "finalizers belong to what set them; the address is compared again once they are gone"
	return found
}

func (f addressFacts) candidate(code Code, grace graceKind) candidate {
	found := candidate{grace: grace, Finding: newFinding(f.subject, code, f.users)}
	if f.object != nil {
		found.incarnation = f.object.UID
	}
	if len(f.users) > 0 {
		found.incarnation += " " + f.users[0].UID
	}
	return found
}

func (f addressFacts) createStep(reason Reason, detail string) Step {
	return Step{
		Verb: planned.Create, Object: f.wantedObject(), Guard: Guard{Absent: true}, Owner: f.users[0].Owner,
		Sole: len(f.users) == 1, Reason: reason, Detail: detail,
	}
}

func (f addressFacts) wantedObject() IPAddress {
	return IPAddress{
		Name:      f.text(),
		Parent:    ServiceParent(f.users[0].Key),
		ManagedBy: AllocatorName,
		Family:    familyOf(f.address),
	}
}

func (f addressFacts) hasAllocatorLabels() bool {
	return f.object.ManagedBy == AllocatorName && f.object.Family == familyOf(f.address)
}

func (f addressFacts) ambiguousOwner() string {
	return fmt.Sprintf("%d services use it, and whose it is is for a person to say", len(f.users))
}

// foreignReason says why the object does not belong to the allocator. It is empty if it does.
func (f addressFacts) foreignReason() string {
	switch {
	case f.object.ManagedBy != AllocatorName:
		return fmt.Sprintf("it is labelled as managed by %q, and what others keep is not touched", wording.Clip(f.object.ManagedBy, maxValue))
	case !f.object.Parent.IsService():
		return "its parent is no service, and what others keep is not touched"
	default:
		return ""
	}
}

// parentEvidence says whether the parent Service exists and why it does not use the address.
func (f addressFacts) parentEvidence() []Evidence {
	if !f.object.Parent.IsService() {
		return nil
	}
	if f.parent == nil {
		return []Evidence{{
			Code: ParentService, Broken: true, Source: "service",
			Finding: f.object.Parent.String() + " does not exist",
		}}
	}
	use := "does not use the address"
	if f.parent.externalName {
		use = "is of type ExternalName and uses no address"
	}
	return []Evidence{{
		Code: ParentService, Broken: true, Source: "service", Service: &Owner{Key: f.parent.Key, UID: f.parent.UID},
		Finding: f.object.Parent.String() + " " + use,
	}}
}

func guardOf(object *IPAddress) Guard {
	return Guard{UID: object.UID, ResourceVersion: object.ResourceVersion}
}
