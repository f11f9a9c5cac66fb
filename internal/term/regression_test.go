package term_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// etcd issues 19597, 21128 and 22123 describe three defects of concurrency.Election. Each scenario
// provokes one of them and returns an error if it occurs. It runs with a candidate, which must
// pass, and with concurrency.Election as its documentation uses it. The election must fail, or the
// scenario proves nothing about the candidate.

// contender takes part in an election.
type contender interface {
	// waiting returns nil once it takes part.
	waiting() error
	// acts says whether it considers itself the leader.
	acts() bool
	// lease returns the lease of its keys.
	lease() clientv3.LeaseID
	// watchFailed returns nil once its watch has failed.
	watchFailed() error
	// handOver gives leadership up and keeps the session. After an error it is called again.
	handOver() error
	// leave ends its participation.
	leave()
}

// method is an implementation of leader election.
type method struct {
	// enter returns a contender with its own id, behind a relay if r is not nil. Its TTL is long.
	enter func(t *testing.T, id string, r *faultproxy.Relay) contender
	// leading is the prefix of the leaders' keys, present of all keys of contenders.
	leading, present func(t *testing.T) string
}

func candidates() method {
	return method{
		enter:   func(t *testing.T, id string, r *faultproxy.Relay) contender { return enterCandidate(t, id, r) },
		leading: func(t *testing.T) string { return termsPrefix(t) },
		present: func(t *testing.T) string { return etcdconn.KeyPrefix(clusterName(t)) },
	}
}

// compareWithElection runs a scenario with candidates, which must pass, and with elections, which
// must fail.
func compareWithElection(t *testing.T, scenario func(*testing.T, method) error) {
	t.Run("candidate", func(t *testing.T) {
		if err := scenario(t, candidates()); err != nil {
			t.Error(err)
		}
	})
	t.Run("election", func(t *testing.T) {
		err := scenario(t, elections())
		if err == nil {
			t.Fatal("etcd's election passes: the scenario no longer provokes the defect, or etcd has fixed it")
		}
		t.Logf("etcd's election fails as expected: %v", err)
	})
}

func TestEtcdElectionDefect_SessionLostWhileWaiting(t *testing.T) {
	compareWithElection(t, sessionLostWhileWaiting)
}

// A contender that loses its session while it waits must not become a leader without a key.
func sessionLostWhileWaiting(t *testing.T, c method) error {
	first := c.enter(t, "a", nil)
	testkit.Eventually(t, testTimeout, acting(first))
	second := c.enter(t, lower("a"), nil)
	testkit.Eventually(t, testTimeout, second.waiting)
	client := dial(t, etcd(t), &faultyConn{})
	if _, err := client.Revoke(t.Context(), second.lease()); err != nil {
		t.Fatal(err)
	}
	first.leave()
	testkit.Eventually(t, testTimeout, acting(second))
	if keys := boundTo(t, client, second.lease(), c.leading(t)); len(keys) == 0 {
		return errors.New("the second acts as leader without a key")
	}
	return nil
}

func TestEtcdElectionDefect_KeyIsNotLeftAfterABrokenWatch(t *testing.T) {
	compareWithElection(t, keyLeftAfterBrokenWatch)
}

// A contender whose watch fails at a compaction must not leave a key behind.
func keyLeftAfterBrokenWatch(t *testing.T, c method) error {
	first := c.enter(t, "a", nil)
	testkit.Eventually(t, testTimeout, acting(first))
	r := newRelay(t, etcd(t))
	second := c.enter(t, lower("a"), r)
	testkit.Eventually(t, testTimeout, second.waiting)
	sleepReal(time.Second) // a campaign opens its watch at an unknown time after it creates its key
	lease := second.lease()
	r.Disconnect(true)
	client := dial(t, etcd(t), &faultyConn{})
	compact(t, client)
	r.Disconnect(false)
	testkit.Eventually(t, testTimeout, second.watchFailed)
	second.leave()
	if keys := boundTo(t, client, lease, c.present(t)); len(keys) > 0 {
		return fmt.Errorf("the second has left, but not its keys %v", keys)
	}
	return nil
}

func TestEtcdElectionDefect_HandoverIsNotForgottenAfterAnError(t *testing.T) {
	t.Parallel()
	compareWithElection(t, handoverForgotten)
}

// A handover without a response must be repeated. Otherwise the key stays until the session ends.
func handoverForgotten(t *testing.T, c method) error {
	r := newRelay(t, etcd(t))
	only := c.enter(t, "a", r)
	testkit.Eventually(t, testTimeout, acting(only))
	client := dial(t, etcd(t), &faultyConn{})
	lease := only.lease()
	before := boundTo(t, client, lease, c.leading(t))
	r.Disconnect(true)
	if err := only.handOver(); err == nil {
		t.Fatal("the handover succeeded without etcd")
	}
	r.Disconnect(false)
	testkit.Eventually(t, testTimeout, only.handOver)
	var left error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); sleepReal(20 * time.Millisecond) {
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

// boundTo returns the keys below a prefix that are bound to a lease, with the revisions that
// created them.
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

// compact writes a key and compacts etcd at that revision.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	noise := etcdconn.KeyPrefix(clusterName(t)) + "noise"
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

// candidate is a contender of package term. Its body hands over by returning.
type candidate struct {
	*testReplica
	t    *testing.T
	id   string // the body may read it before testReplica is set
	h    *history
	log  *testkit.LogBuffer
	once sync.Once
	told chan struct{} // closed when the body is to return
}

func enterCandidate(t *testing.T, id string, r *faultproxy.Relay) *candidate {
	c := &candidate{t: t, id: id, h: newHistory(), log: &testkit.LogBuffer{}, told: make(chan struct{})}
	change := []option{ttl(20 * time.Second), logTo(c.log)}
	if r == nil {
		c.testReplica = join(t, etcd(t), id, c.body, change...)
	} else {
		c.testReplica = joinThrough(t, etcd(t), r, id, c.body, change...)
	}
	t.Cleanup(func() { wantNoViolations(t, c.h) })
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

func (c *candidate) watchFailed() error { return logged(c.log, "compacted") }

// handOver makes the body return, the first time, and returns the error of the release. The
// candidate repeats the release itself.
func (c *candidate) handOver() error {
	c.once.Do(func() {
		close(c.told)
		testkit.Eventually(c.t, testTimeout, func() error {
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
	if err := c.testReplica.leave(); err != nil {
		c.t.Errorf("%s: Run = %v", c.id, err)
	}
}

// electionTimeout bounds the requests of an election, except for the campaign.
const electionTimeout = time.Second

func elections() method {
	prefix := func(t *testing.T) string { return "/election/" + clusterName(t) }
	return method{
		enter: func(t *testing.T, id string, r *faultproxy.Relay) contender {
			return enterElection(t, id, prefix(t), r)
		},
		leading: prefix, present: prefix,
	}
}

// election is a contender that campaigns once, leads when Campaign returns and resigns at the end.
// Its session outlives the resignation.
type election struct {
	session  *concurrency.Session
	election *concurrency.Election
	leads    atomic.Bool
	failed   atomic.Pointer[error]
	ended    chan struct{}
	stop     context.CancelFunc
	id       string
	client   *clientv3.Client
	prefix   string
}

func enterElection(t *testing.T, id, prefix string, r *faultproxy.Relay) *election {
	t.Helper()
	var endpoints []string
	if r != nil {
		endpoints = append(endpoints, endpointOf(r))
	}
	client := dial(t, etcd(t), &faultyConn{}, endpoints...)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(20))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &election{
		session: session, election: concurrency.NewElection(session, prefix),
		ended: make(chan struct{}), stop: stop, id: id, client: client, prefix: prefix,
	}
	go e.campaign(ctx)
	t.Cleanup(func() {
		stop()
		<-e.ended
		_ = session.Close() // the scenario may have revoked its lease
	})
	return e
}

func (e *election) campaign(ctx context.Context) {
	defer close(e.ended)
	if err := e.election.Campaign(ctx, e.id); err != nil {
		e.failed.Store(&err)
		return
	}
	e.leads.Store(true)
}

func (e *election) waiting() error {
	ctx, cancel := context.WithTimeout(context.Background(), electionTimeout)
	defer cancel()
	answer, err := e.client.Get(ctx, fmt.Sprintf("%s/%x", e.prefix, e.session.Lease()))
	if err == nil && len(answer.Kvs) == 0 {
		err = errors.New("its key is not there yet")
	}
	return err
}

func (e *election) acts() bool              { return e.leads.Load() }
func (e *election) lease() clientv3.LeaseID { return e.session.Lease() }

func (e *election) watchFailed() error {
	if err := e.failed.Load(); err == nil || !strings.Contains((*err).Error(), "compacted") {
		return errors.New("the campaign has not met the compaction")
	}
	return nil
}

func (e *election) handOver() error {
	ctx, cancel := context.WithTimeout(context.Background(), electionTimeout)
	defer cancel()
	return e.election.Resign(ctx)
}

// leave resigns after Campaign has returned.
func (e *election) leave() {
	<-e.ended
	_ = e.handOver() // the scenario checks the remaining keys
}
