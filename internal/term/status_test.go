package term_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Shards of a new replica first wait for the budget of moves, then drain. Each move has a target
// and a time.
func TestStatus_ShowsMoves(t *testing.T) {
	t.Parallel()
	const n = 8
	h := newHistory()
	finish := make(chan struct{})
	a := join(t, etcd(t), "a", func(ctx context.Context, held *term.Term) error {
		h.begin("a", held)
		defer h.finish("a", held)
		<-ctx.Done()
		<-finish
		return nil
	}, shards(n), func(c *term.Config) { c.MovesPerSecond = 2 })
	allHeld(t, h, n)
	if moves := movesOf(a); len(moves) != 0 {
		t.Errorf("moves with one replica: %v", moves)
	}
	before := time.Now()
	b := join(t, etcd(t), "b", h.body("b"), shards(n))
	testkit.Eventually(t, testTimeout, func() error {
		return wantMoves(movesOf(a), before)
	})
	close(finish)
	testkit.Eventually(t, testTimeout, func() error {
		if moves := movesOf(a); len(moves) != 0 || h.shares()["b"] == 0 {
			return fmt.Errorf("moves %v, shares %v", moves, h.shares())
		}
		return nil
	})
	if moves := movesOf(b); len(moves) != 0 {
		t.Errorf("moves of a replica that releases nothing: %v", moves)
	}
	wantNoViolations(t, h)
}

// wantMoves returns nil if at least one shard drains and one waits, all of them for b and since
// before.
func wantMoves(moves []term.Move, before time.Time) error {
	counts := map[term.MoveState]int{}
	for _, m := range moves {
		counts[m.State]++
		if m.To != "b" || m.Since.Before(before) || m.Since.After(time.Now()) {
			return fmt.Errorf("move %+v, want one to b since a time after %v", m, before)
		}
	}
	if counts[term.Draining] < 1 || counts[term.Waiting] < 1 {
		return fmt.Errorf("moves by state: %v, want some draining and some waiting", counts)
	}
	return nil
}

func movesOf(p *testReplica) []term.Move {
	var moves []term.Move
	for _, held := range p.Status().Shards {
		if held.Move.State != term.Staying {
			moves = append(moves, held.Move)
		}
	}
	return moves
}

func TestStatus_ShowsReleaseTimeOfVacantShard(t *testing.T) {
	began := time.Now()
	p := join(t, etcd(t), "a", func(context.Context, *term.Term) error { return errors.New("cannot work") })
	testkit.Eventually(t, testTimeout, func() error {
		held := p.Status().Shards[0]
		if held.ReplicaID != "" || held.ReleaseTime.Before(began) {
			return fmt.Errorf("holding = %+v, want none since a time after %v", held, began)
		}
		return nil
	})
}

// The replica that ends a gap observes it.
func TestMetrics_GapsOfHandovers(t *testing.T) {
	const n = 8
	h := newHistory()
	registry := prometheus.NewRegistry()
	a := join(t, etcd(t), "a", h.body("a"), shards(n))
	allHeld(t, h, n)
	b := join(t, etcd(t), "b", h.body("b"), shards(n), func(c *term.Config) { c.Metrics = registry })
	settled(t, h, n, a, b)
	if err := a.leave(); err != nil {
		t.Fatal(err)
	}
	settled(t, h, n, b)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "trivet_term_gap_seconds" {
			gaps := family.GetMetric()[0].GetHistogram()
			if gaps.GetSampleCount() != n || gaps.GetSampleSum() < 0 || gaps.GetSampleSum() > n*testTimeout.Seconds() {
				t.Errorf("%d gaps of %v s together, want %d", gaps.GetSampleCount(), gaps.GetSampleSum(), n)
			}
			t.Logf("%d handovers, %.3f s without a leader on average", gaps.GetSampleCount(), gaps.GetSampleSum()/n)
			return
		}
	}
	t.Error("no trivet_term_gap_seconds")
}
