package merge

// Entries returns the number of entries, free ones included.
func (v *View[T]) Entries() int { return len(v.entries) }
