package term_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
)

// history records when bodies act: from the start of a body until its context ends. It notes every moment at which two act
// for one shard.
type history struct {
	mu       sync.Mutex
	acting   map[int]actor
	acts     []act
	overlaps []string
}

type actor struct {
	replica string
	epoch   int64
}

// act is one body's time of acting; end is zero while it goes on.
type act struct {
	actor
	shard      int
	start, end time.Time
}

func newHistory() *history { return &history{acting: map[int]actor{}} }

// body acts until its context ends.
func (h *history) body(replica string) term.Body {
	return func(ctx context.Context, t *term.Term) error {
		h.begin(replica, t)
		<-ctx.Done()
		h.finish(replica, t)
		return nil
	}
}

func (h *history) begin(replica string, t *term.Term) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := actor{replica: replica, epoch: t.Epoch()}
	if other, busy := h.acting[t.Shard()]; busy {
		h.overlaps = append(h.overlaps, fmt.Sprintf("shard %d: %+v began while %+v acted", t.Shard(), now, other))
	}
	h.acting[t.Shard()] = now
	h.acts = append(h.acts, act{actor: now, shard: t.Shard(), start: time.Now()})
}

func (h *history) finish(replica string, t *term.Term) {
	h.mu.Lock()
	defer h.mu.Unlock()
	me := actor{replica: replica, epoch: t.Epoch()}
	if h.acting[t.Shard()] == me {
		delete(h.acting, t.Shard())
	}
	for i := range slices.Backward(h.acts) {
		if h.acts[i].actor == me && h.acts[i].shard == t.Shard() {
			h.acts[i].end = time.Now()
			return
		}
	}
}

// actors returns who acts for which shard now.
func (h *history) actors() map[int]actor {
	h.mu.Lock()
	defer h.mu.Unlock()
	actors := make(map[int]actor, len(h.acting))
	for shard, a := range h.acting {
		actors[shard] = a
	}
	return actors
}

// shares returns how many shards each replica acts for now.
func (h *history) shares() map[string]int {
	shares := map[string]int{}
	for _, a := range h.actors() {
		shares[a.replica]++
	}
	return shares
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.acts)
}

func (h *history) all() []act {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.acts)
}

// violations returns every overlap, and every shard whose epochs did not grow from act to act.
func (h *history) violations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := slices.Clone(h.overlaps)
	last := map[int]int64{}
	for _, a := range h.acts {
		if a.epoch <= last[a.shard] {
			found = append(found, fmt.Sprintf("shard %d: epoch %d after %d", a.shard, a.epoch, last[a.shard]))
		}
		last[a.shard] = a.epoch
	}
	return found
}
