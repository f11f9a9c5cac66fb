package term_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// The TTL is so long that a replica that waited for a lease or a claim delay would fail the test.
func TestStop_ShardsMoveBeforeSlowestBodyReturns(t *testing.T) {
	const n = 16
	h := newHistory()
	long := ttl(2 * testTimeout)
	other := join(t, etcd(t), "a", h.body("a"), shards(n), long)
	allHeld(t, h, n)
	slow, release := make(chan int, 1), make(chan struct{})
	var busyOne atomic.Bool
	stopping := newTestReplica(t, "b", dial(t, etcd(t), &faultyConn{}), shards(n), long)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- stopping.Run(ctx, func(ctx context.Context, held *term.Term) error {
			err := h.body("b")(ctx, held)
			if busyOne.CompareAndSwap(false, true) {
				slow <- held.Shard()
				<-release
			}
			return err
		})
	}()
	testkit.Eventually(t, testTimeout, func() error {
		if shares := h.shares(); shares["a"]+shares["b"] != n || shares["b"] < 2 {
			return fmt.Errorf("shares are %v, want all of %d shards and at least two with b", shares, n)
		}
		return errors.Join(other.Check(), stopping.Check())
	})

	stop()
	busy := receive(t, slow)
	testkit.Eventually(t, 8*time.Second, func() error { // b's stop timeout is 10 s
		if got := h.shares()["a"]; got != n-1 {
			return fmt.Errorf("a acts for %d shards, want all but the busy one of %d", got, n)
		}
		return nil
	})
	if now, ok := h.actors()[busy]; ok {
		t.Errorf("shard %d is acted for by %+v although the last body has not returned", busy, now)
	}
	close(release)
	if err := receive(t, stopped); err != nil {
		t.Errorf("Run = %v", err)
	}
	if got := allHeld(t, h, n)["a"]; got != n {
		t.Errorf("a acts for %d shards in the end, want %d", got, n)
	}
	wantNoViolations(t, h)
}

// A claim compares the anchor's key and is refused if the anchor has left. When the anchor stops,
// other replicas must claim its shards without delay.
func TestStop_AnchorShardsMoveAtOnce(t *testing.T) {
	const n, rounds = 32, 7
	h := newHistory()
	var took []time.Duration
	first := join(t, etcd(t), "a-0", h.body("a-0"), shards(n))
	allHeld(t, h, n)
	for round := range rounds {
		id := fmt.Sprintf("a-%d", round+1)
		next := join(t, etcd(t), id, h.body(id), shards(n))
		testkit.Eventually(t, testTimeout, func() error {
			if shares := h.shares(); shares[id] < n/4 || shares[id]+shares[first.id] != n {
				return fmt.Errorf("shares are %v, want a fair one of %d shards for %s", shares, n, id)
			}
			return nil
		})
		began := time.Now()
		if err := first.leave(); err != nil {
			t.Fatal(err)
		}
		allHeld(t, h, n)
		took = append(took, time.Since(began))
		first = next
	}
	slices.Sort(took)
	t.Logf("from the stop until all is held again: %v", took)
	if median := took[rounds/2]; median >= 200*time.Millisecond { // the shortest pause after a failed write
		t.Errorf("median time until the shards of the first member are held again = %v", median)
	}
	wantNoViolations(t, h)
}

// Replicas may hand shards over before a new replica has read anything. It must see that they were
// handed over, and start them without a pause.
func TestJoin_HandedOverShardsStartWithoutPause(t *testing.T) {
	const n = 16
	h := newHistory()
	join(t, etcd(t), "a", h.body("a"), shards(n))
	allHeld(t, h, n)
	for round := range 5 {
		var log testkit.LogBuffer
		id := fmt.Sprintf("b-%d", round)
		p := join(t, etcd(t), id, h.body(id), shards(n), logTo(&log))
		testkit.Eventually(t, testTimeout, func() error {
			if h.shares()[id] == 0 {
				return fmt.Errorf("%s acts for nothing", id)
			}
			return nil
		})
		allHeld(t, h, n)
		if err := p.leave(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "shards claimed") && !strings.Contains(line, "pause=0s") {
				t.Errorf("%s waited although the shard was handed over: %s", id, line)
			}
		}
		allHeld(t, h, n)
	}
	wantNoViolations(t, h)
}
