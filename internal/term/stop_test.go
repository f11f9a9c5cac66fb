package term_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
)

// The session is so long that whoever waited for it, or for a rank's patience, would wait longer than the test.
func TestStop_OthersTakeOverWhileTheSlowestBodyIsBusy(t *testing.T) {
	const n = 16
	h := newHistory()
	long := ttl(2 * patience)
	other := join(t, etcd(t), "a", h.body("a"), shards(n), long)
	allHeld(t, h, n)
	slow, release := make(chan int, 1), make(chan struct{})
	var busyOne atomic.Bool
	stopping := newParticipant(t, "b", dial(t, etcd(t), &wire{}), shards(n), long)
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
	testkit.Eventually(t, patience, func() error {
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
	noViolations(t, h)
}
