package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
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

// lags reports whether the stored silence is so much shorter that the next replica should learn of
// it.
func (r Rule) lags(stored, silence time.Duration) bool {
	return !r.StaysExpired(stored) && r.Inherited(silence)-r.Inherited(stored) >= minWriteInterval
}

const (
	// minCorrectionInterval is the minimum time between two writes if the second removes an untrue
	// silence, and minWriteInterval that between other writes.
	minCorrectionInterval = time.Second
	minWriteInterval      = 3 * time.Second
	// bytesPerSecond bounds the average write rate of a shard, because etcd keeps each revision for
	// minutes.
	bytesPerSecond = 16 << 10
	// refreshInterval is how much the stored silence of an expired holder may lag behind.
	refreshInterval = time.Minute
	// maxEntryBytes is what MaxBytes leaves for entries after the names of classes.
	maxEntryBytes = MaxBytes - maxClasses*(maxClass+1) - maxNumbers
)

// Action is what a Plan does to the stored checkpoint.
type Action uint8

const (
	// None keeps it.
	None Action = iota
	// Put replaces it by Plan.Value.
	Put
	// Delete removes it: no holder is silent, or it is untrue and the write rate allows no new one
	// yet.
	Delete
)

// Plan is the next change of the stored checkpoint.
type Plan struct {
	Action Action
	// Value is set for Put.
	Value []byte
	// Omitted is the number of silent holders that MaxBytes leaves out. Those with the longest
	// silence are stored.
	Omitted int

	stored []Entry
}

// Tracker tracks the stored checkpoint of one shard during a term and plans its changes. It is a
// value: methods return the next one.
//
// A stored silence that is no longer true is removed at the next look: the checkpoint is replaced,
// or deleted if the write rate does not allow a replacement. New silences wait for a few seconds,
// so that holders which fall silent together are written together.
type Tracker struct {
	rules  map[string]Rule
	known  bool // whether stored is certain
	stored map[key]Entry
	// The size and the time of the last write, if written.
	size    int
	at      monotonic.Instant
	written bool
}

// NewTracker returns the Tracker at the begin of a term. empty says that nothing is stored; other
// stored content is not trusted. Holders of classes without a rule are never stored.
func NewTracker(rules map[string]Rule, empty bool) Tracker {
	return Tracker{rules: rules, known: empty}
}

// Empty reports whether it is certain that nothing is stored.
func (t Tracker) Empty() bool { return t.known && len(t.stored) == 0 }

// Plan plans the next change for the holders that are silent now, in any order.
func (t Tracker) Plan(now monotonic.Instant, silent []Entry) Plan {
	worth := t.worthStoring(silent)
	untrue := !t.known || t.hasUntrue(worth)
	stored, omitted := fit(worth)
	switch {
	case !untrue && !t.hasNew(stored) && !t.hasAged(now):
		return Plan{Omitted: omitted}
	case len(stored) == 0:
		return Plan{Action: Delete}
	case t.mayWrite(now, untrue):
		return Plan{Action: Put, Value: Encode(stored), Omitted: omitted, stored: stored}
	case untrue:
		return Plan{Action: Delete, Omitted: omitted}
	}
	return Plan{Omitted: omitted}
}

// Applied returns the Tracker after a plan was applied.
func (t Tracker) Applied(now monotonic.Instant, p Plan) Tracker {
	switch p.Action {
	case Put:
		t = t.attempted(now, p)
		t.known, t.stored = true, make(map[key]Entry, len(p.stored))
		for _, e := range p.stored {
			e.Silence = e.Silence.Truncate(silenceUnit)
			t.stored[e.key()] = e
		}
	case Delete:
		t.known, t.stored = true, nil
	}
	return t
}

// Unconfirmed returns the Tracker after an attempt to apply a plan whose result is not known.
func (t Tracker) Unconfirmed(now monotonic.Instant, p Plan) Tracker {
	if p.Action == None {
		return t
	}
	t = t.attempted(now, p)
	t.known, t.stored = false, nil
	return t
}

func (t Tracker) attempted(now monotonic.Instant, p Plan) Tracker {
	if p.Action == Put {
		t.size, t.at, t.written = len(p.Value), now, true
	}
	return t
}

// worthStoring returns the holders whose silence makes a difference to the next replica.
func (t Tracker) worthStoring(silent []Entry) []Entry {
	var worth []Entry
	for _, e := range silent {
		if r, ok := t.rules[e.Class]; ok && e.Silence >= r.Suspect && r.Inherited(e.Silence) > 0 {
			worth = append(worth, e)
		}
	}
	return worth
}

// hasUntrue reports whether a stored holder beat since, or is gone.
func (t Tracker) hasUntrue(worth []Entry) bool {
	stillTrue := 0
	for _, e := range worth {
		if last, stored := t.stored[e.key()]; stored && last.Boot == e.Boot && last.Silence <= e.Silence {
			stillTrue++
		}
	}
	return stillTrue != len(t.stored)
}

// hasNew reports whether a holder is not stored yet, whether its stored silence lags, or whether it
// has begun to stay expired.
func (t Tracker) hasNew(entries []Entry) bool {
	return slices.ContainsFunc(entries, func(e Entry) bool {
		last, stored := t.stored[e.key()]
		rule := t.rules[e.Class]
		silence := e.Silence.Truncate(silenceUnit)
		return !stored || rule.StaysExpired(last.Silence) != rule.StaysExpired(silence) || rule.lags(last.Silence, silence)
	})
}

// hasAged reports whether the stored silence of an expired holder lags by refreshInterval.
func (t Tracker) hasAged(now monotonic.Instant) bool {
	if now.Sub(t.at) < refreshInterval {
		return false
	}
	for _, e := range t.stored {
		if t.rules[e.Class].StaysExpired(e.Silence) {
			return true
		}
	}
	return false
}

func (t Tracker) mayWrite(now monotonic.Instant, untrue bool) bool {
	interval := minWriteInterval
	if untrue {
		interval = minCorrectionInterval
	}
	return !t.written || now.Sub(t.at) >= max(interval, time.Duration(t.size)*time.Second/bytesPerSecond)
}

// fit returns the entries with the longest silences that fit into a checkpoint. It sorts the given
// slice.
func fit(entries []Entry) (stored []Entry, omitted int) {
	slices.SortFunc(entries, compareSilence)
	size := 0
	for i, e := range entries {
		if size += e.maxSize(); size > maxEntryBytes {
			return entries[:i], len(entries) - i
		}
	}
	return entries, 0
}
