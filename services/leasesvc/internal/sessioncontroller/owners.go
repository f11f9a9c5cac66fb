package sessioncontroller

// owners count the sessions that an identity has opened here, of classes whose sessions have such a
// bound. A session counts until it is gone; later beats of others change nothing.
type owners struct {
	limit  int
	bySlot map[uint32]string
	counts map[string]int
}

func newOwners(limit int) owners {
	return owners{limit: limit, bySlot: map[uint32]string{}, counts: map[string]int{}}
}

// full says whether an owner may open no further session. The empty owner always may.
func (o *owners) full(owner string) bool { return owner != "" && o.counts[owner] >= o.limit }

func (o *owners) add(slot uint32, owner string) {
	if owner != "" {
		o.bySlot[slot] = owner
		o.counts[owner]++
	}
}

func (o *owners) remove(slot uint32) {
	owner, owned := o.bySlot[slot]
	if !owned {
		return
	}
	delete(o.bySlot, slot)
	if o.counts[owner]--; o.counts[owner] == 0 {
		delete(o.counts, owner)
	}
}
