package term_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
)

var errBroken = errors.New("kube-apiserver: connection refused")

// starting makes a replica that has yet to say that it can do the work.
func starting(c *term.Config) { c.Starting = true }

// sees waits until a replica counts exactly these members as unready.
func sees(t *testing.T, p *participant, unready ...string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := p.Status().Unready; !slices.Equal(got, unready) {
			return fmt.Errorf("%s counts %v as unready, want %v", p.id, got, unready)
		}
		return p.Check()
	})
}

func TestReady_NewcomerGetsNothingBeforeItCanDoTheWork(t *testing.T) {
	const n = 32
	h := newHistory()
	a := join(t, etcd(t), "a", h.body("a"), shards(n))
	allHeld(t, h, n)
	before := h.actors()
	b := join(t, etcd(t), "b", h.body("b"), shards(n), starting)
	sees(t, a, "b")
	sees(t, b, "b")
	b.SetUnready(errBroken)
	pauseReal(5 * time.Second) // twice the TTL and a second: by now it has failed, too
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v", now, before)
	}
	if reason := b.Status().Session.LastError; !strings.Contains(reason, errBroken.Error()) {
		t.Errorf("status says %q, want why b gets nothing", reason)
	}
	b.SetUnready(nil)
	settled(t, h, n, a, b)
	sees(t, a)
	noViolations(t, h)
}

// Somebody must begin: what makes a replica ready may need a term.
func TestReady_WhereNobodyIsTheFirstBegins(t *testing.T) {
	const n = 8
	h := newHistory()
	began := time.Now()
	a := join(t, etcd(t), "a", h.body("a"), shards(n), starting)
	b := join(t, etcd(t), "b", h.body("b"), shards(n), starting)
	allHeld(t, h, n)
	t.Logf("all shards held %v after the start", time.Since(began))
	before := h.actors()
	b.SetUnready(nil) // the one that has nothing in the way is ready sooner; the other keeps what it began
	sees(t, a, "a")
	pauseReal(2 * time.Second)
	for shard, now := range h.actors() {
		if was := before[shard]; now != was && was.replica == "a" {
			t.Errorf("shard %d went from %+v to %+v while a was starting", shard, was, now)
		}
	}
	a.SetUnready(nil)
	settled(t, h, n, a, b)
	noViolations(t, h)
}

// Who knows that others can do the work does not wait to find out, and is trusted again as soon as it can do it itself.
func TestReady_ConcededShardsMoveAtOnceAndMayComeBack(t *testing.T) {
	const n = 8
	h := newHistory()
	a := join(t, etcd(t), "a", h.body("a"), shards(n))
	b := join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	heldBy := func(replica string) func() error {
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
	began := time.Now()
	a.Concede(errBroken)
	testkit.Eventually(t, patience, heldBy("b"))
	t.Logf("conceded shards were held by another after %v", time.Since(began))
	if reason := a.Status().Session.LastError; !strings.Contains(reason, errBroken.Error()) {
		t.Errorf("status says %q, want why a gets nothing", reason)
	}
	a.Concede(nil)
	settled(t, h, n, a, b)

	// With nobody to concede to, all stay.
	a.Concede(errBroken)
	testkit.Eventually(t, patience, heldBy("b"))
	b.Concede(errBroken)
	sees(t, a, "a", "b")
	pauseReal(2 * time.Second)
	if err := heldBy("b")(); err != nil {
		t.Error(err)
	}
	noViolations(t, h)
}

func TestReady_BrokenHolderGivesItsShardsToThoseWhoCan(t *testing.T) {
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
	a.SetUnready(nil) // having no shard any more it looks able; that proves nothing
	pauseReal(6 * time.Second)
	if now := h.actors(); !maps.Equal(now, after) {
		t.Errorf("acting are %v, were %v: shards came back to a replica that had just failed them", now, after)
	}
	if reason := a.Status().Session.LastError; !strings.Contains(reason, "gave shards away") {
		t.Errorf("status says %q, want why a gets nothing", reason)
	}
	if err := b.leave(); err != nil { // whoever stays behind is still better than nobody
		t.Fatal(err)
	}
	settled(t, h, n, a)
	noViolations(t, h)
}

func TestReady_ABriefFailureMovesNothing(t *testing.T) {
	const n = 16
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a"), shards(n)), join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	before := h.actors()
	for _, long := range []time.Duration{time.Second, 3 * time.Second} { // below the TTL, and below twice the TTL
		a.SetUnready(errBroken)
		pauseReal(long)
		a.SetUnready(nil)
		pauseReal(time.Second)
	}
	sees(t, b, "a")
	sees(t, b)
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v", now, before)
	}
}

// What all depend on fails, and not at the same moment for all. Moving shards would help nobody.
func TestReady_WhenAllAreBrokenNothingMoves(t *testing.T) {
	const n = 16
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a"), shards(n)), join(t, etcd(t), "b", h.body("b"), shards(n))
	settled(t, h, n, a, b)
	before := h.actors()
	a.SetUnready(errBroken)
	pauseReal(time.Second)
	b.SetUnready(errBroken)
	sees(t, a, "a", "b")
	pauseReal(5 * time.Second)
	b.SetUnready(nil)
	pauseReal(time.Second)
	a.SetUnready(nil)
	sees(t, a)
	sees(t, b)
	if now := h.actors(); !maps.Equal(now, before) {
		t.Errorf("acting are %v, were %v", now, before)
	}
	noViolations(t, h)
}

// A replica says what has changed, once, and nothing more.
func TestReady_CostsOneWritePerChange(t *testing.T) {
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"), starting)
	before := waitFor(t, h, "a")
	version := func() int64 {
		answer, err := p.client.Get(t.Context(), membersPrefix(t)+"a")
		if err != nil || len(answer.Kvs) != 1 {
			t.Fatalf("member key: %v, %v", answer, err)
		}
		return answer.Kvs[0].Version
	}
	p.SetUnready(nil)
	sees(t, p)
	for range 100 {
		p.SetUnready(nil)
	}
	pauseReal(2 * time.Second)
	if got := version(); got != 2 {
		t.Errorf("the member key was written %d times, want once to join and once to be ready", got)
	}
	p.SetUnready(errBroken)
	sees(t, p, "a")
	p.revokeLease(t)
	holder(t, h, before.epoch)
	sees(t, p, "a")
	if got := version(); got != 1 {
		t.Errorf("the member key was written %d times since it joined again, want the truth from the start", got)
	}
}
