package merge

// Places returns the number of places for items, free ones included.
func (v *View[T]) Places() int { return len(v.slots) }
