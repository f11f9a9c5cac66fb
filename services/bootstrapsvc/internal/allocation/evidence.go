package allocation

// mostEvidence is how many users of one thing are shown as evidence. All of them are owners.
const mostEvidence = 8

func serviceEvidence(user *holder, broken bool, what, next string) Evidence {
	if user.deleting {
		what += "; it is being deleted, and uses what it has until it is gone"
	}
	return Evidence{
		Code: ServiceUse, Broken: broken, Source: "service", Service: &Owner{Key: user.Key, UID: user.UID},
		Finding: "service " + user.String() + " " + what, Next: next,
	}
}

func objectEvidence(object *IPAddress, broken bool, what, next string) Evidence {
	return Evidence{
		Code: AddressObject, Broken: broken, Source: "ipaddress",
		IPAddress: &Reference{Name: clip(object.Name), UID: object.UID, ResourceVersion: object.ResourceVersion},
		Version:   object.ResourceVersion, Finding: "of ipaddress " + clip(object.Name) + ": " + what, Next: next,
	}
}

// parentEvidence says whether the Service exists in whose name an address is allocated.
func (m matter) parentEvidence() []Evidence {
	if !m.object.Parent.IsService() {
		return nil
	}
	if m.parent == nil {
		return []Evidence{{
			Code: ParentService, Broken: true, Source: "service",
			Finding: m.object.Parent.String() + " does not exist",
		}}
	}
	use := "does not use the address"
	if m.parent.external {
		use = "is of type ExternalName and uses no address"
	}
	return []Evidence{{
		Code: ParentService, Broken: true, Source: "service", Service: &Owner{Key: m.parent.Key, UID: m.parent.UID},
		Finding: m.object.Parent.String() + " " + use,
	}}
}

func bitEvidence(s subject, what, next string) Evidence {
	return Evidence{Code: StoredBit, Broken: true, Source: s.store.String(), Finding: s.noun() + " " + s.text() + ": " + what, Next: next}
}

func rangeEvidence(store Store, what string) Evidence {
	source := store.String()
	if store == IPAddresses {
		source = "servicecidr"
	}
	return Evidence{Code: StoredRange, Broken: true, Source: source, Finding: what}
}

func (s subject) noun() string {
	if s.store == NodePorts {
		return "port"
	}
	return "address"
}

// safe has the steps of a finding made without asking anybody.
func (d draft) safe() draft {
	d.Safe = true
	return d.signed()
}

// unsafe has them wait for a person.
func (d draft) unsafe(why string) draft {
	d.UnsafeReason = why
	return d.signed()
}

// signed writes into the steps whose they are.
func (d draft) signed() draft {
	for i := range d.Steps {
		d.Steps[i].Finding, d.Steps[i].Safe = d.Name, d.Safe
		d.Steps[i].Store, d.Steps[i].Subject = d.Store, d.Subject
	}
	return d
}
