package allocation

// maxEvidence is how many users of one thing are shown as evidence. All of them are owners.
const maxEvidence = 8

func serviceEvidence(user *user, broken bool, what, next string) Evidence {
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
		IPAddress: &IPAddressRef{Name: clip(object.Name), UID: object.UID, ResourceVersion: object.ResourceVersion},
		Version:   object.ResourceVersion, Finding: "of ipaddress " + clip(object.Name) + ": " + what, Next: next,
	}
}

// parentEvidence says whether the Service exists in whose name an address is allocated.
func (m addressFacts) parentEvidence() []Evidence {
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
	if m.parent.externalName {
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

// automatic has the steps of a finding made without asking anybody.
func (d candidate) automatic() candidate {
	d.Safe = true
	return d.withStepOwner()
}

// needsPerson has them wait for a person.
func (d candidate) needsPerson(why string) candidate {
	d.UnsafeReason = why
	return d.withStepOwner()
}

// withStepOwner writes into the steps whose they are.
func (d candidate) withStepOwner() candidate {
	for i := range d.Steps {
		d.Steps[i].Finding, d.Steps[i].Safe = d.Name, d.Safe
		d.Steps[i].Store, d.Steps[i].Subject = d.Store, d.Subject
	}
	return d
}
