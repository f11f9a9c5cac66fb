package slicecontroller

import (
	"slices"
	"sync"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// ranks is how many kinds of Services there are in a line: those that somebody
// waits for go first, then those with urgent changes, and so on.
const ranks = 4

// rankOf gives the rank of changes of an urgency, asked that of a request.
func rankOf(urgency index.Urgency) int { return int(min(urgency, index.Urgent)) }

const asked = ranks - 1

// slackInLine is how many entries that will be passed by a rank may have beyond
// as many again as Services wait.
const slackInLine = 128

// line is the order in which a queue hands out Services: by rank, and within a
// rank as they came. It is given to a workqueue, which keeps each Service in it
// once and calls it under its own lock.
type line struct {
	mu sync.Mutex // guards all below
	// wanted is the rank of Services that wait or are about to.
	wanted map[Key]int
	// queued is the rank under which a Service stands in the line; what stands there
	// under another one is passed by.
	queued map[Key]int
	keys   [ranks][]Key
}

func newLine() *line {
	return &line{wanted: map[Key]int{}, queued: map[Key]int{}}
}

// raise sees to it that a Service stands in the line no later than that rank
// says, once it is added.
func (l *line) raise(key Key, rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if has, ok := l.wanted[key]; !ok || has < rank {
		l.wanted[key] = rank
	}
}

// Touch implements workqueue.Queue: a Service was added that stands there already.
func (l *line) Touch(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rank := l.wanted[key]; rank > l.queued[key] {
		l.put(key, rank)
	}
}

// Push implements workqueue.Queue.
func (l *line) Push(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(key, l.wanted[key])
}

// put needs l.mu.
func (l *line) put(key Key, rank int) {
	l.queued[key] = rank
	l.keys[rank] = append(l.keys[rank], key)
	if len(l.keys[rank]) > 2*len(l.queued)+slackInLine {
		l.tidy(rank)
	}
}

// tidy takes out of a rank what would be passed by: nobody may come that far while
// there is always something in the ranks above. It needs l.mu.
func (l *line) tidy(rank int) {
	seen := map[Key]struct{}{}
	l.keys[rank] = slices.DeleteFunc(l.keys[rank], func(key Key) bool {
		at, queued := l.queued[key]
		_, twice := seen[key]
		seen[key] = struct{}{}
		return !queued || at != rank || twice
	})
}

// Len implements workqueue.Queue.
func (l *line) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queued)
}

// Pop implements workqueue.Queue; it is called only when somebody waits.
func (l *line) Pop() Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rank := ranks - 1; rank >= 0; rank-- {
		for len(l.keys[rank]) > 0 {
			key := l.keys[rank][0]
			l.keys[rank] = l.keys[rank][1:]
			if at, ok := l.queued[key]; ok && at == rank {
				delete(l.queued, key)
				delete(l.wanted, key)
				return key
			}
		}
	}
	return Key{}
}
