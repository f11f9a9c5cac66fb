package engine

import (
	"context"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/expect"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// expectationLife is how long a write of ours that the cache never shows holds
// its Service up. It is far longer than a watch lags when all is well.
const expectationLife = 10 * time.Second

// holding is one shard for one term, with what is remembered of its Services
// beside the cache. It all ends with the term: others may have worked on them
// before the next one.
type holding struct {
	shard int
	// ctx ends with the term; every write for the shard is made with it.
	ctx context.Context
	// underway counts passes. None begins once the ledger has let the holding go.
	underway sync.WaitGroup

	mu sync.Mutex // guards all below; never held across I/O
	// report takes reports on the work; nil once the holding is over.
	report   func(error)
	expected *expect.Expectations
	failures map[Key]failure
	// met has the Services that had a pass, by UID.
	met map[Key]types.UID
	// changed is when the changes came about that a Service's next pass answers.
	changed map[Key]time.Time
}

// failure is how a Service fails since its last success.
type failure struct {
	count int
	err   error
	at    time.Time
}

func newHolding(ctx context.Context, shard int, report func(error)) *holding {
	return &holding{
		shard:    shard,
		ctx:      ctx,
		report:   report,
		expected: expect.New(expectationLife),
		failures: map[Key]failure{},
		met:      map[Key]types.UID{},
		changed:  map[Key]time.Time{},
	}
}

// tell reports on the work unless the holding is over.
func (h *holding) tell(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.report != nil {
		h.report(err)
	}
}

// finish waits for the passes under way; after it nothing is reported.
func (h *holding) finish() {
	h.underway.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report = nil
}

// note takes down when a change came about. Of several changes one pass
// answers, the earliest counts.
func (h *holding) note(key Key, at time.Time) {
	if at.IsZero() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(key, at)
}

// noteLocked needs h.mu.
func (h *holding) noteLocked(key Key, at time.Time) {
	if earlier, ok := h.changed[key]; !ok || at.Before(earlier) {
		h.changed[key] = at
	}
}

// sliceSeen takes note of a slice event. It reports whether the Service needs a
// pass: somebody else's hand is in it, or it waited for this.
func (h *holding) sliceSeen(key Key, slice expect.Version, gone bool, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if gone {
		return h.expected.Gone(key, slice, now)
	}
	return h.expected.Shown(key, slice, now)
}

// begin starts a pass; it must not go on if wait is positive.
func (h *holding) begin(key Key, uid types.UID, now time.Time) (wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expected.Begin(key, uid, now)
}

// changeTime takes out the time of the change that the pass answers. For a
// Service that has no slices and is met for the first time in this term, that is
// its creation. One that has slices changed at a time nobody saw.
func (h *holding) changeTime(key Key, observed index.Observed) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.changed[key]
	delete(h.changed, key)
	if h.met[key] == observed.Service.UID {
		return at
	}
	h.met[key] = observed.Service.UID
	if len(observed.Slices) == 0 {
		return observed.Service.CreationTimestamp.Time
	}
	return time.Time{}
}

func (h *holding) wrote(key Key, verb pack.Verb, slice *discoveryv1.EndpointSlice, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if verb == pack.Delete {
		h.expected.Deleted(key, versionOf(slice), now)
		return
	}
	h.expected.Wrote(key, versionOf(slice), now)
}

// end finishes a pass that answered a change of the given time; a time that was
// not written is kept for the pass that will write. again says that somebody
// else changed a slice meanwhile, so that another pass is needed.
func (h *holding) end(key Key, changeTime time.Time, err error, now time.Time) (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	again = h.expected.End(key)
	if err == nil {
		delete(h.failures, key)
		return again
	}
	h.failures[key] = failure{count: h.failures[key].count + 1, err: err, at: now}
	if !changeTime.IsZero() {
		h.noteLocked(key, changeTime)
	}
	return again
}

// forget drops what is known of a Service that is gone or not managed.
func (h *holding) forget(key Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expected.Forget(key)
	delete(h.failures, key)
	delete(h.met, key)
	delete(h.changed, key)
}

func (h *holding) failureOf(key Key) failure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures[key]
}

// failing counts the Services that fail and gives the one that failed last.
func (h *holding) failing() (count int, last Key, how failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, failure := range h.failures {
		if failure.at.After(how.at) {
			last, how = key, failure
		}
	}
	return len(h.failures), last, how
}

// behind reports whether the cache has yet to show a write for the Service.
func (h *holding) behind(key Key, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expected.Pending(key, now)
}
