package term_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// joinThrough runs a replica behind a relay.
func joinThrough(t *testing.T, cluster *devcluster.Cluster, r *faultproxy.Relay, id string, body term.Body, change ...option) *testReplica {
	t.Helper()
	p := newTestReplica(t, id, dial(t, cluster, &faultyConn{}, endpointOf(r)), change...)
	p.start(t, body)
	return p
}

func TestFault_RevokedLeaseEndsTermAndReplicaRejoins(t *testing.T) {
	t.Parallel()
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"))
	first := leader(t, h, 0)
	for range 3 {
		began := time.Now()
		p.revokeLease(t)
		next := leader(t, h, first.epoch)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("back after %v", took)
		}
		first = next
	}
	wantNoViolations(t, h)
}

func TestFault_RevokedLeaseMovesShard(t *testing.T) {
	t.Parallel()
	h := newHistory()
	a, b := join(t, etcd(t), "a", h.body("a")), join(t, etcd(t), "b", h.body("b"))
	testkit.Eventually(t, testTimeout, func() error { return errors.Join(a.Check(), b.Check()) })
	now := leader(t, h, 0)
	for range 4 {
		if now.replica == "a" {
			a.revokeLease(t)
		} else {
			b.revokeLease(t)
		}
		now = leader(t, h, now.epoch)
	}
	wantNoViolations(t, h)
}

// A guarded write of an old term has no effect, from any sender at any time.
func TestFault_GuardRefusesOldEpoch(t *testing.T) {
	terms := make(chan *term.Term, 1)
	p := join(t, etcd(t), "a", func(ctx context.Context, held *term.Term) error {
		terms <- held
		<-ctx.Done()
		return nil
	})
	old := receive(t, terms)
	client := dial(t, etcd(t), &faultyConn{})
	write := func(held *term.Term) bool {
		answer, err := client.Txn(t.Context()).If(held.Guard()).
			Then(clientv3.OpPut(etcdconn.KeyPrefix(clusterName(t))+"written", fmt.Sprint(held.Epoch()))).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return answer.Succeeded
	}
	if !write(old) {
		t.Error("a write under the present term was refused")
	}
	p.revokeLease(t)
	if write(old) {
		t.Error("a write under a term whose lease is gone took effect")
	}
	next := receive(t, terms)
	if write(old) {
		t.Error("a write under an old epoch took effect")
	}
	if !write(next) {
		t.Error("a write under the new term was refused")
	}
	if next.Epoch() <= old.Epoch() {
		t.Errorf("epoch %d follows %d", next.Epoch(), old.Epoch())
	}
}

func TestFault_DeletedTermKeyEndsTerm(t *testing.T) {
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"))
	first := leader(t, h, 0)
	lease, _, _ := p.Session()
	if _, err := p.client.Delete(t.Context(), termKey(t, 0)); err != nil {
		t.Fatal(err)
	}
	leader(t, h, first.epoch)
	if now, _, ok := p.Session(); !ok || now != lease {
		t.Errorf("session %x, %t: a deleted term key ended the session %x", now, ok, lease)
	}
	wantNoViolations(t, h)
}

// The deletion of a key by an operator does not wait for the body. The next replica starts its body
// only after the pause in which the leader learns of the deletion, or once the leader has announced
// that its body returned.
func TestFault_TermKeyDeletedByHandIsNoHandover(t *testing.T) {
	h := newHistory()
	a := join(t, etcd(t), "a", h.body("a"), shards(64), func(c *term.Config) { c.MovesPerSecond = 1 })
	allHeld(t, h, 64)
	join(t, etcd(t), "b", h.body("b"), shards(64))
	waiting := -1 // a holds the shard, and b is to have it
	var before actor
	var began time.Time
	testkit.Eventually(t, testTimeout, func() error {
		for _, shard := range a.Status().Shards {
			if !shard.Here || shard.Move.State != term.Waiting {
				continue
			}
			waiting, before, began = shard.Shard, h.actors()[shard.Shard], time.Now()
			key := termKey(t, waiting) // a may have released the shard since
			reply, err := a.client.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(key), "=", before.epoch)).
				Then(clientv3.OpDelete(key)).Commit()
			switch {
			case err != nil:
				return err
			case reply.Succeeded:
				return nil
			}
		}
		return errors.New("no shard waits for its move")
	})
	testkit.Eventually(t, testTimeout, func() error {
		if now, acting := h.actors()[waiting]; !acting || now.epoch == before.epoch {
			return fmt.Errorf("shard %d is not back", waiting)
		}
		return nil
	})
	took := time.Since(began)
	announced, err := a.client.Get(t.Context(), membersPrefix(t)+"a")
	if err != nil {
		t.Fatal(err)
	}
	returned := strings.Contains(string(announced.Kvs[0].Value), fmt.Sprintf("%d@%d", waiting, before.epoch))
	if took < 250*time.Millisecond && !returned {
		t.Errorf("the next body started within %v of the deletion, want the pause of a takeover before", took)
	}
	wantNoViolations(t, h)
}

func TestFault_LongerSessionThanAskedForIsReported(t *testing.T) {
	h := newHistory()
	var log testkit.LogBuffer
	w := &faultyConn{}
	w.leastTTL.Store(7)
	p := newTestReplica(t, "a", dial(t, etcd(t), w), logTo(&log))
	p.start(t, h.body("a"))
	waitFor(t, h, "a")
	if got := p.Status().Session.TTL; got != 7*time.Second {
		t.Errorf("TTL = %v, want the 7 s that etcd granted", got)
	}
	if !strings.Contains(log.String(), `level=WARN msg="etcd grants longer sessions than asked for`) || !strings.Contains(log.String(), "granted=7s asked=2s") {
		t.Errorf("the log does not tell that the session is too long:\n%s", log.String())
	}
}

func TestFault_DeletedMemberKeyOpensNewSession(t *testing.T) {
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"))
	first := leader(t, h, 0)
	if _, err := p.client.Delete(t.Context(), membersPrefix(t)+"a"); err != nil {
		t.Fatal(err)
	}
	leader(t, h, first.epoch)
	wantNoViolations(t, h)
}

// A replica whose renewals fail stops before etcd deletes its keys. It does not rejoin while they
// fail.
func TestFault_FrozenRenewalsEndTermBeforeKeyExpires(t *testing.T) {
	t.Parallel()
	h := newHistory()
	ended := make(chan time.Time, 1)
	p := join(t, etcd(t), "a", func(ctx context.Context, held *term.Term) error {
		err := h.body("a")(ctx, held)
		ended <- time.Now()
		if err := held.Check(); !errors.Is(err, term.ErrEnded) {
			t.Errorf("Check after the end = %v", err)
		}
		return err
	})
	waitFor(t, h, "a")
	other := lower("a")
	join(t, etcd(t), other, h.body(other))
	watched := dial(t, etcd(t), &faultyConn{}).Watch(t.Context(), termKey(t, 0))
	p.conn.frozen.Store(true)
	for gone := false; !gone; {
		for _, event := range receive(t, watched).Events {
			gone = gone || event.Type == clientv3.EventTypeDelete
		}
	}
	keyGone := time.Now()
	if end := receive(t, ended); end.After(keyGone) {
		t.Errorf("the body's context ended %v after the key had gone", end.Sub(keyGone))
	}
	waitFor(t, h, other)
	testkit.Eventually(t, testTimeout, func() error {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), "renew lease") {
			return fmt.Errorf("Check = %v, want it to say that renewals fail", err)
		}
		return nil
	})
	p.conn.frozen.Store(false)
	waitFor(t, h, "a")
	wantNoViolations(t, h)
}

func TestFault_LongEtcdOutageEndsTermsAndTheyReturn(t *testing.T) {
	t.Parallel()
	cluster := ownEtcd(t)
	h := newHistory()
	a, b := join(t, cluster, "a", h.body("a")), join(t, cluster, "b", h.body("b"))
	testkit.Eventually(t, testTimeout, func() error { return errors.Join(a.Check(), b.Check()) })
	before := leader(t, h, 0)
	if err := cluster.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testTimeout, func() error {
		if acting := h.actors(); len(acting) > 0 {
			return fmt.Errorf("still running without etcd: %v", acting)
		}
		return nil
	})
	for _, p := range []*testReplica{a, b} {
		testkit.Eventually(t, testTimeout, func() error {
			if err := p.Check(); err == nil || !strings.Contains(err.Error(), "connection refused") {
				return fmt.Errorf("%s: Check = %v, want the reason", p.id, err)
			}
			return nil
		})
	}
	if err := cluster.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	leader(t, h, before.epoch)
	wantNoViolations(t, h)
}

func TestFault_ShortEtcdOutageKeepsTerms(t *testing.T) {
	t.Parallel()
	cluster := ownEtcd(t)
	h := newHistory()
	p := join(t, cluster, "a", h.body("a"), ttl(20*time.Second))
	before := leader(t, h, 0)
	if err := errors.Join(cluster.StopEtcd(), cluster.StartEtcd()); err != nil {
		t.Fatal(err)
	}
	// A renewal after the restart shows that the session continues.
	testkit.Eventually(t, testTimeout, func() error {
		if remaining := p.Status().Session.Remaining; remaining < 12*time.Second {
			return fmt.Errorf("not renewed since the restart: %v remaining", remaining)
		}
		return nil
	})
	if now := h.actors()[0]; now != before || h.count() != 1 {
		t.Errorf("shard 0 is held by %+v, was by %+v; %d bodies ran", now, before, h.count())
	}
}

// A watch cannot resume before a compacted revision. The candidate must list again.
func TestFault_CompactionWhileCutOffLosesNoEvent(t *testing.T) {
	r := newRelay(t, etcd(t))
	h := newHistory()
	var log testkit.LogBuffer
	p := joinThrough(t, etcd(t), r, "a", h.body("a"), shards(2), ttl(20*time.Second), logTo(&log))
	allHeld(t, h, 2)
	before := h.actors()
	r.Disconnect(true)
	client := dial(t, etcd(t), &faultyConn{})
	// While the candidate is cut off, one of its term keys is deleted and that revision compacted.
	var answer *clientv3.PutResponse
	if _, err := client.Delete(t.Context(), termKey(t, 1)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var err error
		if answer, err = client.Put(t.Context(), etcdconn.KeyPrefix(clusterName(t))+"noise", "x"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Compact(t.Context(), answer.Header.Revision); err != nil {
		t.Fatal(err)
	}
	r.Disconnect(false)
	testkit.Eventually(t, testTimeout, func() error {
		now := h.actors()
		if now[1].epoch <= before[1].epoch || now[0] != before[0] {
			return fmt.Errorf("acting are %v, were %v", now, before)
		}
		return nil
	})
	if text := log.String(); !strings.Contains(text, "compacted") {
		t.Errorf("the watch never met the compaction, so this test shows nothing; log:\n%s", text)
	}
	if _, err := client.Delete(t.Context(), etcdconn.KeyPrefix(clusterName(t))+"noise"); err != nil {
		t.Fatal(err)
	}
	if err := p.leave(); err != nil {
		t.Error(err)
	}
	wantNoKeys(t)
	wantNoViolations(t, h)
}

func TestFault_BodyThatIgnoresStopKeepsItsKey(t *testing.T) {
	release := make(chan struct{})
	returned := make(chan struct{})
	h := newHistory()
	p := join(t, etcd(t), "a", func(ctx context.Context, held *term.Term) error {
		if held.Shard() == 1 {
			return h.body("a")(ctx, held)
		}
		h.begin("a", held)
		<-release
		close(returned)
		return nil
	}, shards(2), func(c *term.Config) { c.StopTimeout = 500 * time.Millisecond })
	allHeld(t, h, 2)
	client := dial(t, etcd(t), &faultyConn{})
	if err := p.leave(); err == nil || !strings.Contains(err.Error(), "bodies of shards 0 did not return") {
		t.Errorf("Run = %v, want it to name the body", err)
	}
	left, err := client.Get(t.Context(), etcdconn.KeyPrefix(clusterName(t)), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if len(left.Kvs) != 1 || string(left.Kvs[0].Key) != termKey(t, 0) {
		t.Errorf("keys after the stop: %v, want only the stuck shard's", left.Kvs)
	}
	close(release)
	receive(t, returned)
}

// A body that outlives its session blocks only its own shard on this replica.
func TestFault_BodyThatIgnoresLossBlocksOnlyItsShard(t *testing.T) {
	release := make(chan struct{})
	h := newHistory()
	p := join(t, etcd(t), "a", func(ctx context.Context, held *term.Term) error {
		err := h.body("a")(ctx, held)
		if held.Shard() == 0 {
			<-release
		}
		return err
	}, shards(2), func(c *term.Config) { c.DrainTimeout = time.Second })
	allHeld(t, h, 2)
	before := h.actors()
	p.revokeLease(t)
	testkit.Eventually(t, testTimeout, func() error {
		if now := h.actors(); now[1].epoch <= before[1].epoch {
			return fmt.Errorf("shard 1 is not back: %v", now)
		}
		return nil
	})
	testkit.Eventually(t, testTimeout, func() error {
		if err := p.CheckAlive(); err == nil || !strings.Contains(err.Error(), "body of shard 0") || strings.Contains(err.Error(), "shard 1") {
			return fmt.Errorf("CheckAlive = %v, want it to name shard 0 alone", err)
		}
		return nil
	})
	if now, acting := h.actors()[0]; acting {
		t.Errorf("shard 0 acts again (%+v) although its last body has not returned", now)
	}
	close(release)
	leader(t, h, before[0].epoch)
	if err := p.CheckAlive(); err != nil {
		t.Errorf("CheckAlive = %v after the body has returned", err)
	}
	wantNoViolations(t, h)
}

func TestFault_EtcdAbsentAtStartReportsReason(t *testing.T) {
	r := newRelay(t, etcd(t))
	r.Disconnect(true)
	h := newHistory()
	p := joinThrough(t, etcd(t), r, "a", h.body("a"))
	testkit.Eventually(t, testTimeout, func() error {
		err := p.Check()
		if err == nil || !strings.Contains(err.Error(), "ask etcd for a lease") {
			return fmt.Errorf("Check = %v, want what it waits for", err)
		}
		return nil
	})
	r.Disconnect(false)
	waitFor(t, h, "a")
}

func TestFault_EtcdAbsentAtStopDoesNotDelayStop(t *testing.T) {
	t.Parallel()
	r := newRelay(t, etcd(t))
	h := newHistory()
	p := joinThrough(t, etcd(t), r, "a", h.body("a"), shards(8), ttl(20*time.Second))
	allHeld(t, h, 8)
	r.Disconnect(true)
	began := time.Now()
	if err := p.leave(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the stop took %v without etcd", took)
	}
}
