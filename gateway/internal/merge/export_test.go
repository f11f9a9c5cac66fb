package merge

// Places counts the places that are kept, free ones included.
func (s *State[T]) Places() int { return len(s.slots) }
