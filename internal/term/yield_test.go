package term_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
)

// Replicas concede and take it back at random, all of them at times, and lose sessions meanwhile. Bodies take their time.
func TestConcede_NoShardIsLostAndNoneIsHeldTwice(t *testing.T) {
	const n = 64
	h := newHistory()
	slow := func(replica string) term.Body {
		body := h.body(replica)
		return func(ctx context.Context, held *term.Term) error {
			return body(lingering(ctx, 20*time.Millisecond), held)
		}
	}
	var all []*participant
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, join(t, etcd(t), id, slow(id), shards(n)))
	}
	settled(t, h, n, all...)
	draw := rand.New(rand.NewPCG(6, 6))
	for range 40 {
		one := all[draw.IntN(len(all))]
		switch draw.IntN(8) {
		case 0:
			if id, _, ok := one.Session(); ok {
				_, _ = one.client.Revoke(t.Context(), id) // it may be over by now
			}
		case 1, 2, 3:
			one.Concede(nil)
		default:
			one.Concede(errBroken)
		}
		pauseReal(time.Duration(draw.IntN(300)) * time.Millisecond)
	}
	for _, each := range all {
		each.Concede(errBroken)
	}
	allHeld(t, h, n)
	for _, each := range all {
		each.Concede(nil)
	}
	settled(t, h, n, all...)
	noViolations(t, h)
}

// lingering is a context that ends a while after ctx does.
func lingering(ctx context.Context, while time.Duration) context.Context {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(while, cancel) })
	return late
}

// Where the only two concede to each other at the same moment, the shard is held all the same, and then stays.
func TestConcede_AtTheSameMomentLeavesNothingVacant(t *testing.T) {
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a")), join(t, etcd(t), "b", h.body("b"))
	settled(t, h, 1, a, b)
	for range 5 {
		a.Concede(errBroken)
		b.Concede(errBroken)
		sees(t, a, "a", "b")
		sees(t, b, "a", "b")
		pauseReal(500 * time.Millisecond) // what was on its way when they learnt of each other arrives
		allHeld(t, h, 1)
		before := h.actors()[0]
		pauseReal(time.Second)
		if now := h.actors()[0]; now != before {
			t.Errorf("held by %+v, was by %+v: it went around among those who cannot do the work", now, before)
		}
		a.Concede(nil)
		b.Concede(nil)
		testkit.Eventually(t, patience, func() error {
			if unready := a.Status().Unready; len(unready) > 0 {
				return fmt.Errorf("%v count as unready", unready)
			}
			return nil
		})
	}
	settled(t, h, 1, a, b)
	noViolations(t, h)
}
