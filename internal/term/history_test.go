package term_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// history records when bodies run, from the start of a body until its context ends. It records each
// overlap of two bodies of one shard.
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

// act is one run of a body; end is zero while it runs.
type act struct {
	actor
	shard      int
	start, end time.Time
}

func newHistory() *history { return &history{acting: map[int]actor{}} }

// body returns a body that runs until its context ends.
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
	own := actor{replica: replica, epoch: t.Epoch()}
	if h.acting[t.Shard()] == own {
		delete(h.acting, t.Shard())
	}
	for i := range slices.Backward(h.acts) {
		if h.acts[i].actor == own && h.acts[i].shard == t.Shard() {
			h.acts[i].end = time.Now()
			return
		}
	}
}

// actors returns the running bodies by shard.
func (h *history) actors() map[int]actor {
	h.mu.Lock()
	defer h.mu.Unlock()
	actors := make(map[int]actor, len(h.acting))
	for shard, a := range h.acting {
		actors[shard] = a
	}
	return actors
}

// shares returns the number of running bodies by replica.
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

// violations returns each overlap and each epoch that is not above the previous one of its shard.
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

// testTimeout is far longer than any operation takes, even on a busy machine.
const testTimeout = 30 * time.Second

// allHeld waits until each of n shards has a running body. It returns the number of shards by
// replica.
func allHeld(t *testing.T, h *history, n int) map[string]int {
	t.Helper()
	testkit.Eventually(t, testTimeout, func() error {
		if held := len(h.actors()); held != n {
			return fmt.Errorf("%d of %d shards are held", held, n)
		}
		return nil
	})
	return h.shares()
}

// leader waits until shard 0 is held at an epoch above the given one.
func leader(t *testing.T, h *history, above int64) actor {
	t.Helper()
	var found actor
	testkit.Eventually(t, testTimeout, func() error {
		found = h.actors()[0]
		if found.epoch <= above {
			return fmt.Errorf("shard 0 is held by %+v, want an epoch above %d", found, above)
		}
		return nil
	})
	return found
}

func wantNoViolations(t *testing.T, h *history) {
	t.Helper()
	for _, v := range h.violations() {
		t.Error(v)
	}
}

// wantNoKeys checks that the shared etcd has no key of the test.
func wantNoKeys(t *testing.T) {
	t.Helper()
	left, err := dial(t, etcd(t), &faultyConn{}).Get(t.Context(), etcdconn.KeyPrefix(clusterName(t)), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left.Kvs {
		t.Errorf("left behind: %s = %s", entry.Key, entry.Value)
	}
}

// settled waits until each of n shards is held by its owner among ps.
func settled(t *testing.T, h *history, n int, ps ...*testReplica) {
	t.Helper()
	var members []sharding.Member
	for _, p := range ps {
		members = append(members, sharding.Member{ID: p.id, Shards: n})
	}
	testkit.Eventually(t, testTimeout, func() error {
		actors := h.actors()
		for shard := range n {
			if owner := sharding.Owner(shard, members); actors[shard].replica != owner {
				return fmt.Errorf("shard %d is held by %+v, want %s", shard, actors[shard], owner)
			}
		}
		return nil
	})
}

// waitFor waits until a replica holds shard 0.
func waitFor(t *testing.T, h *history, id string) actor {
	t.Helper()
	testkit.Eventually(t, testTimeout, func() error {
		if now := h.actors()[0]; now.replica != id {
			return fmt.Errorf("shard 0 is held by %+v, want %s", now, id)
		}
		return nil
	})
	return h.actors()[0]
}

// lower returns the id of a replica that ranks behind id for shard 0.
func lower(id string) string {
	for i := 0; ; i++ {
		other := fmt.Sprintf("r-%d", i)
		if sharding.Owner(0, []sharding.Member{{ID: id, Shards: 1}, {ID: other, Shards: 1}}) == id {
			return other
		}
	}
}

// receive receives from c within testTimeout.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(testTimeout):
		t.Fatalf("nothing received within %v", testTimeout)
		panic("unreachable")
	}
}

// sleepReal waits while a real etcd and real replicas work. No state is expected afterwards.
func sleepReal(d time.Duration) { <-time.After(d) }
