package checkpoint

import "time"

// Rule is what silence means for the holders of one class.
type Rule struct {
	// Suspect is the silence from which on a holder is stored.
	Suspect time.Duration
	// TTL is the silence with which a session expires.
	TTL time.Duration
	// Floor is the least time in which a living holder is certain to be heard by a replica that it does not know yet: its
	// interval and the time in which agents find a new server.
	MinGrace time.Duration
}

// settled is the silence of those who stay expired: they have been for a Floor.
func (r Rule) settled() time.Duration { return r.TTL + r.MinGrace }

// Settled tells whether a holder that was silent for so long stays expired at the next replica.
func (r Rule) StaysExpired(silence time.Duration) bool { return silence >= r.settled() }

// Inherit is the silence with which the next replica takes over a holder whose silence was stored. 0 is none: a full grace,
// and nothing to remember the holder by.
func (r Rule) Inherited(silence time.Duration) time.Duration {
	if r.StaysExpired(silence) {
		return silence
	}
	return max(0, min(silence, r.TTL-r.MinGrace))
}
