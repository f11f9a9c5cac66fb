package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// remembered is how many boots that were replaced a session knows. An older one could win the name back with a beat that was
// delayed for longer than as many boots took.
const maxReplaced = 4

// Duplicate is another boot that beats under the name of a session and is refused.
type Duplicate struct {
	Boot string
	// Since is when the episode began, Last when a boot was last refused. An episode ends when a whole TTL passes without.
	Since, Last monotonic.Instant
	// Refusals of the episode.
	Refusals int64
}

// rivals are the other boots of a session's name. Few sessions have any.
type otherBoots struct {
	// replaced are fingerprints of the boots before this one, the newest first; 0 for none.
	replaced [maxReplaced]uint64
	// last is the newest of them.
	last      string
	duplicate Duplicate
}

func (r *otherBoots) wasReplaced(boot string) bool {
	if r == nil {
		return false
	}
	print := fingerprint(boot)
	for _, replaced := range r.replaced {
		if replaced == print {
			return true
		}
	}
	return false
}

// push remembers the boot that was replaced, and forgets the one that replaced it.
func (r *otherBoots) addReplaced(replaced, by string) {
	forget, kept := fingerprint(by), []uint64{fingerprint(replaced)}
	for _, print := range r.replaced {
		if print != forget && print != kept[0] && print != 0 && len(kept) < maxReplaced {
			kept = append(kept, print)
		}
	}
	r.replaced, r.last = [maxReplaced]uint64{}, replaced
	copy(r.replaced[:], kept)
	if r.duplicate.Boot == by {
		r.duplicate = Duplicate{}
	}
}

// refuse counts a beat of another boot.
func (r *otherBoots) refuse(now monotonic.Instant, boot string, ttl time.Duration) {
	d := &r.duplicate
	if d.Refusals == 0 || now.Sub(d.Last) > ttl {
		*d = Duplicate{Since: now}
	}
	d.Boot, d.Last = boot, now
	d.Refusals++
}

// Duplicate returns the boot that is refused for the session that ref names; false when there is none.
func (t *Table) Duplicate(ref Ref) (Duplicate, bool) {
	if t.resolve(ref) != Renewed {
		return Duplicate{}, false
	}
	r := t.others[ref.slot]
	if r == nil || r.duplicate.Refusals == 0 {
		return Duplicate{}, false
	}
	return r.duplicate, true
}

func (t *Table) refuse(now monotonic.Instant, slot uint32, boot string) {
	r := t.others[slot]
	if r == nil {
		return // nobody was replaced here, so nobody is refused
	}
	if boot == "" {
		boot = r.last
	}
	r.refuse(now, boot, t.classes[t.records.At(slot).class].TTL)
}

// fingerprint is FNV-1a, and never 0.
func fingerprint(s string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(s) {
		hash ^= uint64(s[i])
		hash *= 1099511628211
	}
	return max(hash, 1)
}
