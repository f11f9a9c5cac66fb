package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// maxReplaced is the number of replaced boots that a session rejects. An older boot could take the
// session back only with a beat that was delayed by more takeovers than that.
const maxReplaced = 4

// episodeGap is the time without a rejected beat, beyond a TTL, after which an episode ends. A
// rejected boot is asked to return when the session could have expired, and pauses for a minute and
// a half at most.
const episodeGap = 2 * time.Minute

// Duplicate is a rejected boot that beats under the name of a session. Its beats form an episode,
// which ends when none comes for a TTL and two minutes.
type Duplicate struct {
	// Boot is the boot that was rejected last.
	Boot string
	// Since is the time of the first rejection of the episode, Last that of the last one.
	Since, Last monotonic.Instant
	// Rejections counts the rejections of the episode.
	Rejections int64
}

// otherBoots are the replaced boots of a session. Few sessions have any.
type otherBoots struct {
	// replaced are fingerprints, the newest boot first; 0 for none.
	replaced [maxReplaced]uint64
	// newest is the newest replaced boot.
	newest string
	// returned says that the current boot was replaced before.
	returned  bool
	duplicate Duplicate
}

func (o *otherBoots) wasReplaced(boot string) bool {
	if o == nil {
		return false
	}
	print := fingerprint(boot)
	for _, replaced := range o.replaced {
		if replaced == print {
			return true
		}
	}
	return false
}

// addReplaced adds the replaced boot and removes the current one.
func (o *otherBoots) addReplaced(replaced, current string) {
	o.returned = o.wasReplaced(current)
	currentPrint, kept := fingerprint(current), []uint64{fingerprint(replaced)}
	for _, print := range o.replaced {
		if print != currentPrint && print != kept[0] && print != 0 && len(kept) < maxReplaced {
			kept = append(kept, print)
		}
	}
	o.replaced, o.newest = [maxReplaced]uint64{}, replaced
	copy(o.replaced[:], kept)
	if o.duplicate.Boot == current {
		o.duplicate = Duplicate{}
	}
}

// reject counts a rejected beat.
func (o *otherBoots) reject(now monotonic.Instant, boot string, ttl time.Duration) {
	d := &o.duplicate
	if d.Rejections == 0 || now.Sub(d.Last) > ttl+episodeGap {
		*d = Duplicate{Since: now}
	}
	d.Boot, d.Last = boot, now
	d.Rejections++
}

// Duplicate returns the boot that is rejected for the session of ref. It is false if there is none,
// or if its episode has ended.
func (t *Table) Duplicate(now monotonic.Instant, ref Ref) (Duplicate, bool) {
	if t.resolve(ref) != Renewed {
		return Duplicate{}, false
	}
	o := t.others[ref.slot]
	if o == nil || o.duplicate.Rejections == 0 || now.Sub(o.duplicate.Last) > t.classes[t.records.At(ref.slot).class].TTL+episodeGap {
		return Duplicate{}, false
	}
	return o.duplicate, true
}

// Returned returns the boot that had the session of ref between two times of its current boot. It
// is false if the current boot was not replaced before. A machine never returns to an earlier boot,
// so two machines have the name.
func (t *Table) Returned(ref Ref) (other string, returned bool) {
	if t.resolve(ref) != Renewed {
		return "", false
	}
	if o := t.others[ref.slot]; o != nil && o.returned {
		return o.newest, true
	}
	return "", false
}

// reject counts a beat of another boot. An empty boot stands for the newest replaced one.
func (t *Table) reject(now monotonic.Instant, slot uint32, boot string) {
	o := t.others[slot]
	if o == nil {
		return // no boot was replaced in this session
	}
	if boot == "" {
		boot = o.newest
	}
	o.reject(now, boot, t.classes[t.records.At(slot).class].TTL)
}

// fingerprint is FNV-1a, but never 0.
func fingerprint(s string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(s) {
		hash ^= uint64(s[i])
		hash *= 1099511628211
	}
	return max(hash, 1)
}
