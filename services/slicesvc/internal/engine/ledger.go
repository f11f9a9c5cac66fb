package engine

import (
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/expect"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// expectationLife is how long a write of ours that the cache never shows holds
// its Service up. It is far longer than a watch lags when all is well.
const expectationLife = 10 * time.Second

// queue holds the Services to be worked on, each once.
type queue = workqueue.TypedRateLimitingInterface[Key]

// History is how passes over a Service went.
type History struct {
	// LastSync is when one last succeeded; zero if none did.
	LastSync time.Time
	// LastError is what the last one failed with; empty when it succeeded.
	LastError string
	// Failures counts those that failed since the last success.
	Failures int
}

// ledger is what the engine remembers beside the cache.
type ledger struct {
	mu sync.Mutex // guards all below; never held across I/O
	// queue takes work; nil outside a term.
	queue    queue
	expected *expect.Expectations
	history  map[Key]History
	// failing counts the histories with failures, lastFailure is the latest.
	failing     int
	lastFailure failure
	// passes counts passes finished since health was last asked.
	passes int
	// met has the Services that had a pass in this term, by UID.
	met map[Key]types.UID
	// changed is when the changes came about that a Service's next pass answers.
	changed map[Key]time.Time
}

type failure struct {
	key Key
	err error
}

func newLedger() *ledger {
	return &ledger{
		expected: expect.New(expectationLife),
		history:  map[Key]History{},
		met:      map[Key]types.UID{},
		changed:  map[Key]time.Time{},
	}
}

// open begins a term. What changed before it may have been answered by
// somebody else, so the times of those changes are forgotten.
func (l *ledger) open(work queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = work
	l.passes = 0
	clear(l.met)
	clear(l.changed)
}

// close ends a term.
func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = nil
}

func (l *ledger) queueLength() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return 0
	}
	return l.queue.Len()
}

// enqueue asks for a pass. Outside a term nobody works; the next one begins
// with a pass over every Service.
func (l *ledger) enqueue(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(key)
}

// add needs l.mu.
func (l *ledger) add(key Key) {
	if l.queue != nil {
		l.queue.Add(key)
	}
}

// affected asks for passes over the Services a change concerns.
func (l *ledger) affected(effect index.Effect) {
	if len(effect.Services) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range effect.Services {
		l.note(key, effect.Time)
		l.add(key)
	}
}

// note needs l.mu. Of several changes one pass answers, the earliest counts.
func (l *ledger) note(key Key, at time.Time) {
	if l.queue == nil || at.IsZero() {
		return
	}
	if earlier, ok := l.changed[key]; !ok || at.Before(earlier) {
		l.changed[key] = at
	}
}

// sliceSeen takes note of a slice event and asks for a pass over those Services
// that somebody else's hand is in, or that waited for it.
func (l *ledger) sliceSeen(services []Key, slice expect.Version, gone bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	observe := l.expected.Shown
	if gone {
		observe = l.expected.Gone
	}
	for _, key := range services {
		if observe(key, slice, now) {
			l.add(key)
		}
	}
}

// begin starts a pass; it must not go on if wait is positive.
func (l *ledger) begin(key Key, uid types.UID, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected.Begin(key, uid, now)
}

// changeTime takes out the time of the change that the pass answers. For a
// Service that has no slices and is met for the first time in this term, that is
// its creation. One that has slices changed at a time nobody saw.
func (l *ledger) changeTime(key Key, observed index.Observed) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.changed[key]
	delete(l.changed, key)
	if l.met[key] == observed.Service.UID {
		return at
	}
	l.met[key] = observed.Service.UID
	if len(observed.Slices) == 0 {
		return observed.Service.CreationTimestamp.Time
	}
	return time.Time{}
}

func (l *ledger) wrote(key Key, verb pack.Verb, slice *discoveryv1.EndpointSlice, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if verb == pack.Delete {
		l.expected.Deleted(key, versionOf(slice), now)
		return
	}
	l.expected.Wrote(key, versionOf(slice), now)
}

// end finishes a pass that answered a change of the given time. A time that
// was not written is kept for the pass that will write.
func (l *ledger) end(key Key, changeTime time.Time, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expected.End(key) {
		l.add(key)
	}
	if err != nil {
		l.note(key, changeTime)
	}
	l.record(key, err, now)
}

// abandon finishes a pass that was cut short by the end of the term.
func (l *ledger) abandon(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expected.End(key)
}

// record needs l.mu.
func (l *ledger) record(key Key, err error, now time.Time) {
	l.passes++
	entry := l.history[key]
	wasFailing := entry.Failures > 0
	if err == nil {
		entry = History{LastSync: now}
	} else {
		entry.LastError = err.Error()
		entry.Failures++
		l.lastFailure = failure{key: key, err: err}
	}
	l.history[key] = entry
	switch {
	case wasFailing && err == nil:
		l.failing--
	case !wasFailing && err != nil:
		l.failing++
	}
}

// forget drops what is known of a Service that is gone or not managed.
func (l *ledger) forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.history[key].Failures > 0 {
		l.failing--
	}
	l.expected.Forget(key)
	delete(l.history, key)
	delete(l.met, key)
	delete(l.changed, key)
}

func (l *ledger) historyOf(key Key) History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.history[key]
}

// behind reports whether the cache has yet to show a write for the Service.
func (l *ledger) behind(key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected.Pending(key, time.Now())
}
