package term_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
)

// Three defects of etcd's own election are known from etcd's issues 19597, 21128 and 22123. Each scenario here plays one of
// them through and returns an error if it bites. Both a candidate and concurrency.Election, used as its documentation shows,
// go through each. The election must fail: otherwise the scenario would prove nothing about the candidate.

// contender wants to lead, alone.
type contender interface {
	// waiting is nil once it takes part.
	waiting() error
	// acts says whether it believes that it leads.
	acts() bool
	// lease is what its keys are bound to.
	lease() clientv3.LeaseID
	// troubled is nil once it has noticed that its watch cannot go on.
	troubled() error
	// handOver gives leadership up while the process and its session go on. After an error it is called again.
	handOver() error
	// leave ends its taking part.
	leave()
}

// contest is a way to decide who leads.
type contest struct {
	// enter makes a contender with an id of its own, behind a relay if one is given. Its session lives for long.
	enter func(t *testing.T, id string, r *relay) contender
	// leading and present are prefixes: of keys by which somebody leads, and of all keys of contenders.
	leading, present func(t *testing.T) string
}

func candidates() contest {
	return contest{
		enter:   func(t *testing.T, id string, r *relay) contender { return enterCandidate(t, id, r) },
		leading: func(t *testing.T) string { return termsPrefix(t) },
		present: func(t *testing.T) string { return term.Prefix(clusterName(t)) },
	}
}

// bites runs a scenario against candidates, which must come out of it well, and against elections, which must not.
func bites(t *testing.T, scenario func(*testing.T, contest) error) {
	t.Run("candidate", func(t *testing.T) {
		if err := scenario(t, candidates()); err != nil {
			t.Error(err)
		}
	})
	t.Run("election", func(t *testing.T) {
		err := scenario(t, elections())
		if err == nil {
			t.Fatal("etcd's election comes out of it well, so the scenario has lost its bite or etcd has mended the defect")
		}
		t.Logf("as it should, etcd's election fails: %v", err)
	})
}

func TestDefect_SessionLostWhileWaiting(t *testing.T) { bites(t, sessionLostWhileWaiting) }

// A contender that loses its session while it waits must not come out of the wait as a leader without a key.
func sessionLostWhileWaiting(t *testing.T, c contest) error {
	first := c.enter(t, "a", nil)
	testkit.Eventually(t, patience, acting(first))
	second := c.enter(t, lower("a"), nil)
	testkit.Eventually(t, patience, second.waiting)
	client := dial(t, etcd(t), &wire{})
	if _, err := client.Revoke(t.Context(), second.lease()); err != nil {
		t.Fatal(err)
	}
	first.leave()
	testkit.Eventually(t, patience, acting(second))
	if keys := boundTo(t, client, second.lease(), c.leading(t)); len(keys) == 0 {
		return errors.New("the second acts as leader without a key")
	}
	return nil
}

func TestDefect_KeyIsNotLeftAfterABrokenWatch(t *testing.T) { bites(t, keyLeftAfterBrokenWatch) }

// A contender whose watch was broken by a compaction must leave no key behind that nobody stands for.
func keyLeftAfterBrokenWatch(t *testing.T, c contest) error {
	first := c.enter(t, "a", nil)
	testkit.Eventually(t, patience, acting(first))
	r := newRelay(t, etcd(t))
	second := c.enter(t, lower("a"), r)
	testkit.Eventually(t, patience, second.waiting)
	pauseReal(time.Second) // a campaign opens its watch some time after its key is there, and nobody is told when
	lease := second.lease()
	r.setCut(true)
	client := dial(t, etcd(t), &wire{})
	compact(t, client)
	r.setCut(false)
	testkit.Eventually(t, patience, second.troubled)
	second.leave()
	if keys := boundTo(t, client, lease, c.present(t)); len(keys) > 0 {
		return fmt.Errorf("the second has left, but not its keys %v", keys)
	}
	return nil
}

func TestDefect_HandoverIsNotForgottenAfterAnError(t *testing.T) { bites(t, handoverForgotten) }

// A handover that got no answer must be made again, not forgotten: otherwise the key stays as long as the session lives.
func handoverForgotten(t *testing.T, c contest) error {
	r := newRelay(t, etcd(t))
	only := c.enter(t, "a", r)
	testkit.Eventually(t, patience, acting(only))
	client := dial(t, etcd(t), &wire{})
	lease := only.lease()
	before := boundTo(t, client, lease, c.leading(t))
	r.setCut(true)
	if err := only.handOver(); err == nil {
		t.Fatal("the handover succeeded without etcd")
	}
	r.setCut(false)
	testkit.Eventually(t, patience, only.handOver)
	var left error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); pauseReal(20 * time.Millisecond) {
		now := boundTo(t, client, lease, c.leading(t))
		if left = stillThere(before, now); left == nil {
			break
		}
	}
	if only.lease() != lease {
		t.Error("the session was lost, so the key went with its lease and this shows nothing")
	}
	return left
}

func stillThere(before, now map[string]int64) error {
	for key, revision := range before {
		if now[key] == revision {
			return fmt.Errorf("key %s of revision %d is still there after the handover", key, revision)
		}
	}
	return nil
}

func acting(c contender) func() error {
	return func() error {
		if !c.acts() {
			return errors.New("it does not lead")
		}
		return nil
	}
}

// boundTo returns the keys below a prefix that are bound to a lease, with the revisions that created them.
func boundTo(t *testing.T, client *clientv3.Client, lease clientv3.LeaseID, prefix string) map[string]int64 {
	t.Helper()
	answer, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]int64{}
	for _, entry := range answer.Kvs {
		if entry.Lease == int64(lease) {
			keys[string(entry.Key)] = entry.CreateRevision
		}
	}
	return keys
}

// compact writes something and drops the history up to that.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	noise := term.Prefix(clusterName(t)) + "noise"
	if _, err := client.Put(t.Context(), noise, "x"); err != nil {
		t.Fatal(err)
	}
	answer, err := client.Delete(t.Context(), noise)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), answer.Header.Revision); err != nil {
		t.Fatal(err)
	}
}

// candidate is a contender of this package. Its body hands over by returning.
type candidate struct {
	*participant
	t    *testing.T
	id   string // the body reads it while the participant is still being made
	h    *history
	log  *testLog
	once sync.Once
	told chan struct{} // closed when the body is to return
}

func enterCandidate(t *testing.T, id string, r *relay) *candidate {
	c := &candidate{t: t, id: id, h: newHistory(), log: &testLog{}, told: make(chan struct{})}
	change := []options{ttl(20 * time.Second), logTo(c.log)}
	if r == nil {
		c.participant = join(t, etcd(t), id, c.body, change...)
	} else {
		c.participant = joinThrough(t, etcd(t), r, id, c.body, change...)
	}
	t.Cleanup(func() { noViolations(t, c.h) })
	return c
}

func (c *candidate) body(ctx context.Context, held *term.Term) error {
	c.h.begin(c.id, held)
	defer c.h.finish(c.id, held)
	select {
	case <-c.told:
		return errors.New("told to hand over")
	case <-ctx.Done():
		return nil
	}
}

func (c *candidate) waiting() error { return c.Check() }
func (c *candidate) acts() bool     { return len(c.h.actors()) > 0 }

func (c *candidate) lease() clientv3.LeaseID {
	id, _, _ := c.Session()
	return id
}

func (c *candidate) troubled() error { return logged(c.log, "compacted") }

// handOver makes the body return, the first time, and reports what the release met with; to repeat it is the candidate's own
// affair.
func (c *candidate) handOver() error {
	c.once.Do(func() {
		close(c.told)
		testkit.Eventually(c.t, patience, func() error {
			if reason := c.Status().Session.LastError; !strings.Contains(reason, "release 1 shards") {
				return fmt.Errorf("status says %q, want that the release did not get through", reason)
			}
			return nil
		})
	})
	if reason := c.Status().Session.LastError; reason != "" {
		return errors.New(reason)
	}
	return nil
}

func (c *candidate) leave() {
	if err := c.participant.leave(); err != nil {
		c.t.Errorf("%s: Run = %v", c.id, err)
	}
}
