package term_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var errBroken = errors.New("kube-apiserver: connection refused")

// startUnready makes a replica unready until its first SetUnready(nil).
func startUnready(c *term.Config) { c.Starting = true }

// waitForUnready waits until a replica sees exactly these members as unready.
func waitForUnready(t *testing.T, p *testReplica, unready ...string) {
	t.Helper()
	testkit.Eventually(t, testTimeout, func() error {
		if got := p.Status().Unready; !slices.Equal(got, unready) {
			return fmt.Errorf("%s counts %v as unready, want %v", p.id, got, unready)
		}
		return p.Check()
	})
}

// allHeldBy returns a check that a replica holds all n shards.
func allHeldBy(h *history, n int, replica string) func() error {
	return func() error {
		for shard, actor := range h.actors() {
			if actor.replica != replica {
				return fmt.Errorf("shard %d is with %s", shard, actor.replica)
			}
		}
		if got := len(h.actors()); got != n {
			return fmt.Errorf("%d shards are held, want %d", got, n)
		}
		return nil
	}
}

func TestReadiness_NewReplicaGetsNoShardBeforeItIsReady(t *testing.T) {
	t.Parallel()
	const n = 32
	h := newHistory()
	a := join(t, etcd(t), "a", h.body("a"), shards(n))
	allHeld(t, h, n)
	before := h.actors()
	b := join(t, etcd(t), "b", h.body("b"), shards(n), startUnready)
	waitForUnready(t, a, "b")
	waitForUnready(t, b, "b")
	b.SetUnready(errBroken)
	sleepReal(5 * time.Second) // twice the TTL and a second: b is failing by now
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v", now, before)
	}
	if reason := b.Status().Session.LastError; !strings.Contains(reason, errBroken.Error()) {
		t.Errorf("status says %q, want why b gets nothing", reason)
	}
	b.SetUnready(nil)
	settled(t, h, n, a, b)
	waitForUnready(t, a)
	wantNoViolations(t, h)
}

// Unready replicas must claim vacant shards, because a replica may need a term to become ready.
func TestReadiness_AllUnreadyClaimVacantShards(t *testing.T) {
	t.Parallel()
	const n = 8
	h := newHistory()
	began := time.Now()
	a := join(t, etcd(t), "a", h.body("a"), shards(n), startUnready)
	b := join(t, etcd(t), "b", h.body("b"), shards(n), startUnready)
	allHeld(t, h, n)
	t.Logf("all shards held %v after the start", time.Since(began))
	before := h.actors()
	b.SetUnready(nil) // b becomes ready first; a keeps its shards
	waitForUnready(t, a, "a")
	sleepReal(2 * time.Second)
	for shard, now := range h.actors() {
		if was := before[shard]; now != was && was.replica == "a" {
			t.Errorf("shard %d went from %+v to %+v while a was unready", shard, was, now)
		}
	}
	a.SetUnready(nil)
	settled(t, h, n, a, b)
	wantNoViolations(t, h)
}

// A replica that yields moves its shards at once, and gets them back as soon as it stops yielding.
func TestYield_ShardsMoveAtOnceAndReturn(t *testing.T) {
	t.Parallel()
	const n = 8
	h := newHistory()
	a := join(t, etcd(t), "a", h.body("a"), shards(n))
	b := join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	began := time.Now()
	a.YieldLeadership(errBroken)
	testkit.Eventually(t, testTimeout, allHeldBy(h, n, "b"))
	t.Logf("yielded shards were held by b after %v", time.Since(began))
	if reason := a.Status().Session.LastError; !strings.Contains(reason, errBroken.Error()) {
		t.Errorf("status says %q, want why a gets nothing", reason)
	}
	a.YieldLeadership(nil)
	settled(t, h, n, a, b)

	// If both yield, no shard moves.
	a.YieldLeadership(errBroken)
	testkit.Eventually(t, testTimeout, allHeldBy(h, n, "b"))
	b.YieldLeadership(errBroken)
	waitForUnready(t, a, "a", "b")
	sleepReal(2 * time.Second)
	if err := allHeldBy(h, n, "b")(); err != nil {
		t.Error(err)
	}
	wantNoViolations(t, h)
}

// A replica that prefers others keeps its shards, gets none from ready ones, and takes them at once
// from a replica that yields.
func TestPreferOthers_ReplicaIsBetterThanOneThatYields(t *testing.T) {
	const n = 8
	h := newHistory()
	a := join(t, etcd(t), "a", h.body("a"), shards(n))
	b := join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	before := h.actors()
	b.PreferOthers(errBroken)
	waitForUnready(t, a, "b")
	sleepReal(time.Second)
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v: a replica that prefers others keeps its shards", now, before)
	}
	if reason := b.Status().Session.LastError; !strings.Contains(reason, errBroken.Error()) {
		t.Errorf("status says %q, want why b gets nothing", reason)
	}
	began := time.Now()
	a.YieldLeadership(errBroken)
	testkit.Eventually(t, testTimeout, allHeldBy(h, n, "b"))
	t.Logf("yielded shards were held by b after %v", time.Since(began))
	a.YieldLeadership(nil)
	b.PreferOthers(nil)
	settled(t, h, n, a, b)
	wantNoViolations(t, h)
}

func TestReadiness_FailingReplicaReleasesShardsToReadyOnes(t *testing.T) {
	t.Parallel()
	const n = 16
	h := newHistory()
	registry := prometheus.NewRegistry()
	a := join(t, etcd(t), "a", h.body("a"), shards(n), func(c *term.Config) { c.Metrics = registry })
	b := join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	held := float64(h.shares()["a"])
	released := values(t, registry)["trivet_term_releases_total"]
	began := time.Now()
	a.SetUnready(errBroken)
	settled(t, h, n, b)
	took := time.Since(began)
	t.Logf("%v shards moved within %v at a TTL of 2 s", held, took)
	if took < 4*time.Second || took > 4*time.Second+3*time.Second {
		t.Errorf("moved after %v, want twice the TTL and a handover", took)
	}
	if got := values(t, registry)["trivet_term_releases_total"] - released; got != held {
		t.Errorf("%v releases, want %v", got, held)
	}
	if got := values(t, registry)["trivet_term_ready"]; got != 0 {
		t.Errorf("trivet_term_ready = %v of a replica that is not", got)
	}
	after := h.actors()
	a.SetUnready(nil) // without shards its checks pass; that proves nothing
	sleepReal(6 * time.Second)
	if now := h.actors(); !maps.Equal(now, after) {
		t.Errorf("acting are %v, were %v: shards moved back to a replica that had just failed", now, after)
	}
	if reason := a.Status().Session.LastError; !strings.Contains(reason, "gave shards away") {
		t.Errorf("status says %q, want why a gets nothing", reason)
	}
	if err := b.leave(); err != nil { // an unready replica is better than none
		t.Fatal(err)
	}
	settled(t, h, n, a)
	wantNoViolations(t, h)
}

func TestReadiness_BriefFailureMovesNoShard(t *testing.T) {
	t.Parallel()
	const n = 16
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a"), shards(n)), join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	before := h.actors()
	for _, long := range []time.Duration{time.Second, 3 * time.Second} { // below the TTL, and below twice the TTL
		a.SetUnready(errBroken)
		sleepReal(long)
		a.SetUnready(nil)
		sleepReal(time.Second)
	}
	waitForUnready(t, b, "a")
	waitForUnready(t, b)
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v", now, before)
	}
}

// A common dependency fails for all replicas, at different times. Moving shards would not help.
func TestReadiness_AllFailingMovesNoShard(t *testing.T) {
	t.Parallel()
	const n = 16
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a"), shards(n)), join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	before := h.actors()
	a.SetUnready(errBroken)
	sleepReal(time.Second)
	b.SetUnready(errBroken)
	waitForUnready(t, a, "a", "b")
	sleepReal(5 * time.Second)
	b.SetUnready(nil)
	sleepReal(time.Second)
	a.SetUnready(nil)
	waitForUnready(t, a)
	waitForUnready(t, b)
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v", now, before)
	}
	wantNoViolations(t, h)
}

// A replica writes its member key once for each change.
func TestReadiness_ChangeCostsOneWrite(t *testing.T) {
	t.Parallel()
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"), startUnready)
	before := waitFor(t, h, "a")
	version := func() int64 {
		answer, err := p.client.Get(t.Context(), membersPrefix(t)+"a")
		if err != nil || len(answer.Kvs) != 1 {
			t.Fatalf("member key: %v, %v", answer, err)
		}
		return answer.Kvs[0].Version
	}
	p.SetUnready(nil)
	waitForUnready(t, p)
	for range 100 {
		p.SetUnready(nil)
	}
	sleepReal(2 * time.Second)
	if got := version(); got != 2 {
		t.Errorf("the member key was written %d times, want once to join and once to be ready", got)
	}
	p.SetUnready(errBroken)
	waitForUnready(t, p, "a")
	p.revokeLease(t)
	leader(t, h, before.epoch)
	waitForUnready(t, p, "a")
	if got := version(); got != 1 {
		t.Errorf("the member key was written %d times since it joined again, want the right value from the start", got)
	}
}

// Replicas yield and stop yielding at random, sometimes all of them, and lose sessions. Bodies are
// slow.
func TestYield_RandomYieldsKeepOneLeaderPerShard(t *testing.T) {
	t.Parallel()
	const n = 64
	h := newHistory()
	slow := func(replica string) term.Body {
		body := h.body(replica)
		return func(ctx context.Context, held *term.Term) error {
			return body(delayedEnd(ctx, 20*time.Millisecond), held)
		}
	}
	var all []*testReplica
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
				_, _ = one.client.Revoke(t.Context(), id) // the lease may be gone
			}
		case 1, 2, 3:
			one.YieldLeadership(nil)
		default:
			one.YieldLeadership(errBroken)
		}
		sleepReal(time.Duration(draw.IntN(300)) * time.Millisecond)
	}
	for _, each := range all {
		each.YieldLeadership(errBroken)
	}
	allHeld(t, h, n)
	for _, each := range all {
		each.YieldLeadership(nil)
	}
	settled(t, h, n, all...)
	wantNoViolations(t, h)
}

// delayedEnd returns a context that ends some time after ctx.
func delayedEnd(ctx context.Context, delay time.Duration) context.Context {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(delay, cancel) })
	return late
}

// If the only two replicas yield at once, the shard stays held and does not move.
func TestYield_BothReplicasAtOnceKeepTheShard(t *testing.T) {
	t.Parallel()
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a")), join(t, etcd(t), "b", h.body("b"))
	settled(t, h, 1, a, b)
	for range 5 {
		a.YieldLeadership(errBroken)
		b.YieldLeadership(errBroken)
		waitForUnready(t, a, "a", "b")
		waitForUnready(t, b, "a", "b")
		sleepReal(500 * time.Millisecond) // requests in flight arrive
		allHeld(t, h, 1)
		before := h.actors()[0]
		sleepReal(time.Second)
		if now := h.actors()[0]; now != before {
			t.Errorf("held by %+v, was by %+v: it moved between replicas that yield", now, before)
		}
		a.YieldLeadership(nil)
		b.YieldLeadership(nil)
		testkit.Eventually(t, testTimeout, func() error {
			if unready := a.Status().Unready; len(unready) > 0 {
				return fmt.Errorf("%v count as unready", unready)
			}
			return nil
		})
	}
	settled(t, h, 1, a, b)
	wantNoViolations(t, h)
}
