package checkpoint

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// quick is the least time between two writes of which the later takes something back, and slow between others.
	quick = time.Second
	slow  = 3 * time.Second
	// rate is how many bytes a second one shard may write on average. etcd keeps every version for minutes.
	rate = 16 << 10
	// refresh is how much of the silence of those who stay expired may be forgotten.
	refresh = time.Minute
	// room for the entries: the rest is for the names of classes.
	room = MaxBytes - maxClasses*(maxClass+1) - frame
)

// Verb says what to do about what is stored.
type Action uint8

const (
	// Nothing: it may stay as it is.
	None Action = iota
	// Store: it is to be replaced by the plan's value.
	Put
	// Erase: it is to be deleted. Nobody is silent, or what is stored is untrue and it is too early to write as much again.
	Delete
)

// Plan is what is to be done now.
type Plan struct {
	Action Action
	// Value is set with Store.
	Value []byte
	// LeftOut is how many silent holders found no room. Those who have been silent for the longest come first.
	Omitted int

	kept []Entry
}

// Ledger knows what is stored of one shard, and decides when to write. It is a value: methods return the next one.
//
// What has become untrue, because a holder that is stored as silent has beaten, is replaced at the next look, or erased when it
// is large and was written a moment ago: a short write is always possible. What is new waits for a few seconds, so that holders
// which fall silent together are written together. Holders that are a little late are not written at all.
type Tracker struct {
	rules  map[string]Rule
	known  bool // whether stored is what is stored
	stored map[key]Entry
	size   int // of the last value, written at
	at     monotonic.Instant
	wrote  bool
}

// NewLedger returns the ledger of a shard at the begin of a term: empty says whether nothing is stored; what else is stored it
// does not trust. Holders of classes without a rule are never stored.
func NewTracker(rules map[string]Rule, empty bool) Tracker {
	return Tracker{rules: rules, known: empty}
}

// Empty tells whether it is certain that nothing is stored.
func (l Tracker) Empty() bool { return l.known && len(l.stored) == 0 }

// Plan decides about the holders that are silent now, in any order.
func (l Tracker) Plan(now monotonic.Instant, silent []Entry) Plan {
	worth := l.worthStoring(silent)
	untrue := !l.known || l.hasUntrue(worth)
	kept, leftOut := choose(worth)
	switch {
	case !untrue && !l.hasNew(kept) && !l.hasAged(now):
		return Plan{Omitted: leftOut}
	case len(kept) == 0:
		return Plan{Action: Delete}
	case l.mayWrite(now, untrue):
		return Plan{Action: Put, Value: Encode(kept), Omitted: leftOut, kept: kept}
	case untrue:
		return Plan{Action: Delete, Omitted: leftOut}
	}
	return Plan{Omitted: leftOut}
}

// After is the ledger once a plan has been carried out.
func (l Tracker) Applied(now monotonic.Instant, p Plan) Tracker {
	switch p.Action {
	case Put:
		l = l.tried(now, p)
		l.known, l.stored = true, make(map[key]Entry, len(p.kept))
		for _, e := range p.kept {
			e.Silence = e.Silence.Truncate(tick)
			l.stored[e.key()] = e
		}
	case Delete:
		l.known, l.stored = true, nil
	}
	return l
}

// Doubt is the ledger after an attempt to carry a plan out that may have succeeded or not.
func (l Tracker) Unconfirmed(now monotonic.Instant, p Plan) Tracker {
	if p.Action == None {
		return l
	}
	l = l.tried(now, p)
	l.known, l.stored = false, nil
	return l
}

func (l Tracker) tried(now monotonic.Instant, p Plan) Tracker {
	if p.Action == Put {
		l.size, l.at, l.wrote = len(p.Value), now, true
	}
	return l
}

// worth is those whose silence makes a difference to the next replica.
func (l Tracker) worthStoring(silent []Entry) []Entry {
	var worth []Entry
	for _, e := range silent {
		if r, served := l.rules[e.Class]; served && e.Silence >= r.Suspect && r.Inherited(e.Silence) > 0 {
			worth = append(worth, e)
		}
	}
	return worth
}

// untrue tells whether somebody who is stored was heard since, or is not known any more.
func (l Tracker) hasUntrue(worth []Entry) bool {
	still := 0
	for _, e := range worth {
		if was, stored := l.stored[e.key()]; stored && was.Boot == e.Boot && was.Silence <= e.Silence {
			still++
		}
	}
	return still != len(l.stored)
}

// news tells whether somebody is not stored yet, or stays expired as of late.
func (l Tracker) hasNew(kept []Entry) bool {
	return slices.ContainsFunc(kept, func(e Entry) bool {
		was, stored := l.stored[e.key()]
		rule := l.rules[e.Class]
		return !stored || rule.StaysExpired(was.Silence) != rule.StaysExpired(e.Silence.Truncate(tick))
	})
}

// aged tells whether somebody has been dead for much longer than is stored.
func (l Tracker) hasAged(now monotonic.Instant) bool {
	if now.Sub(l.at) < refresh {
		return false
	}
	for _, e := range l.stored {
		if l.rules[e.Class].StaysExpired(e.Silence) {
			return true
		}
	}
	return false
}

func (l Tracker) mayWrite(now monotonic.Instant, untrue bool) bool {
	pause := slow
	if untrue {
		pause = quick
	}
	return !l.wrote || now.Sub(l.at) >= max(pause, time.Duration(l.size)*time.Second/rate)
}

// choose takes those for whom there is room.
func choose(worth []Entry) (kept []Entry, leftOut int) {
	slices.SortFunc(worth, longestFirst)
	size := 0
	for i, e := range worth {
		if size += e.size(); size > room {
			return worth[:i], len(worth) - i
		}
	}
	return worth, 0
}
