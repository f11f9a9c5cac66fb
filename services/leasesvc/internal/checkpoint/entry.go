package checkpoint

import (
	"cmp"
	"time"
)

// Entry is one silent holder. Classes have names here: their numbers are one configuration's.
type Entry struct {
	Class, Name, Boot string
	// Silence is how long the holder has not been heard, at least.
	Silence time.Duration
}

// key names a holder over its boots.
type key struct{ class, name string }

func (e Entry) key() key { return key{class: e.Class, name: e.Name} }

// compare orders entries as they are stored.
func compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Name, b.Name))
}

// longestFirst orders entries by what would be lost with them; the order of equals is that of compare.
func longestFirst(a, b Entry) int {
	return cmp.Or(cmp.Compare(b.Silence, a.Silence), compare(a, b))
}
