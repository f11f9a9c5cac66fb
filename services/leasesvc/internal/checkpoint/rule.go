package checkpoint

import (
	"cmp"
	"time"
)

// Entry is one silent holder. It has the name of its class, because the numbers of classes depend
// on the configuration.
type Entry struct {
	Class, Name, Boot string
	// Silence is the time since the last beat, or less.
	Silence time.Duration
}

// key identifies a holder across its boots.
type key struct{ class, name string }

func (e Entry) key() key { return key{class: e.Class, name: e.Name} }

// compare orders entries as they are stored.
func compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Name, b.Name))
}

// compareSilence orders entries by silence, the longest first, and equal silences as compare.
func compareSilence(a, b Entry) int {
	return cmp.Or(cmp.Compare(b.Silence, a.Silence), compare(a, b))
}

// Rule holds the times of one class.
type Rule struct {
	// Suspect is the silence from which on a holder is stored.
	Suspect time.Duration
	// TTL is the silence after which a session is expired.
	TTL time.Duration
	// MinGrace is the time within which a live holder is sure to reach a new replica: its interval
	// and the time in which an agent connects to another server.
	MinGrace time.Duration
}

// StaysExpired reports whether a holder with this stored silence stays expired at the next replica.
func (r Rule) StaysExpired(silence time.Duration) bool { return silence >= r.TTL+r.MinGrace }

// Inherited returns the silence that the next replica assumes for a stored silence. 0 means the
// full grace period.
func (r Rule) Inherited(silence time.Duration) time.Duration {
	if r.StaysExpired(silence) {
		return silence
	}
	return max(0, min(silence, r.TTL-r.MinGrace))
}
