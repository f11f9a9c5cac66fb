package term_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestCandidate_OneOfThreeHoldsTheShardAndAllAgree(t *testing.T) {
	h := newHistory()
	var all []*testReplica
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, join(t, etcd(t), id, h.body(id)))
	}
	// The first replica may hold the shard for a moment before its owner joins.
	var status term.ShardStatus
	testkit.Eventually(t, testTimeout, func() error {
		for _, p := range all {
			if err := p.Check(); err != nil {
				return err
			}
			held := p.Status().Shards[0]
			want := h.actors()[0]
			if held.ReplicaID != want.replica || held.Epoch != want.epoch || want.replica == "" || held.Here != (p.id == want.replica) {
				return fmt.Errorf("%s waitForUnready %+v, acting is %+v", p.id, held, want)
			}
			status = held
		}
		return nil
	})
	if want := status.ReplicaID + ".test:7601"; status.GRPCAddress != want {
		t.Errorf("leader's address = %q, want %q", status.GRPCAddress, want)
	}
	for _, p := range all {
		if err := p.leave(); err != nil {
			t.Errorf("%s: Run = %v", p.id, err)
		}
	}
	wantNoViolations(t, h)
	wantNoKeys(t)
}

func TestCandidate_TermMatchesItsKey(t *testing.T) {
	terms := make(chan *term.Term, 1)
	var changes []term.Change // Run's goroutine appends, and has ended when they are read
	p := join(t, etcd(t), "a", func(ctx context.Context, held *term.Term) error {
		if carried, ok := term.FromContext(ctx); !ok || carried != held {
			t.Errorf("the body's context carries %v, %t", carried, ok)
		}
		terms <- held
		<-ctx.Done()
		return nil
	}, func(cfg *term.Config) { cfg.OnChange = func(change term.Change) { changes = append(changes, change) } })
	held := receive(t, terms)
	answer, err := p.client.Get(t.Context(), termKey(t, 0))
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("term key: %v, %v", answer, err)
	}
	lease, session, ok := p.Session()
	if entry := answer.Kvs[0]; !ok || entry.CreateRevision != held.Epoch() || string(entry.Value) != "a" || entry.Lease != int64(lease) {
		t.Errorf("term key = %v, want epoch %d, value a, lease %x", entry, held.Epoch(), lease)
	}
	if err := held.Check(); err != nil || held.Remaining() <= 0 {
		t.Errorf("Check = %v, remaining %v", err, held.Remaining())
	}
	if err := p.leave(); err != nil {
		t.Fatal(err)
	}
	if len(changes) != 2 || changes[0] != (term.Change{Kind: term.Taken, Epoch: held.Epoch()}) ||
		changes[1].Kind != term.GivenUp || changes[1].Epoch != held.Epoch() || changes[1].Cause == nil {
		t.Errorf("changes %+v, want that the term began and was given up", changes)
	}
	if err := held.Check(); !errors.Is(err, term.ErrEnded) {
		t.Errorf("Check after the end = %v, want ErrEnded", err)
	}
	if session.Err() == nil {
		t.Error("the session's context outlived Run")
	}
	if err := p.Check(); err == nil {
		t.Error("Check says that a candidate which does not run is alive")
	}
}

func TestCandidate_MembershipChangeMovesFewestShards(t *testing.T) {
	const n = 64
	h := newHistory()
	first := join(t, etcd(t), "a", h.body("a"), shards(n))
	allHeld(t, h, n)
	before := h.actors()
	var all []*testReplica
	for _, id := range []string{"b", "c"} {
		began := time.Now()
		all = append(all, join(t, etcd(t), id, h.body(id), shards(n)))
		settled(t, h, n, append([]*testReplica{first}, all...)...)
		t.Logf("rebalanced within %v of the join of %s: %v", time.Since(began).Round(time.Millisecond), id, h.shares())
		for shard, now := range h.actors() {
			if now != before[shard] && now.replica != id {
				t.Errorf("shard %d moved from %v to %v although %s joined", shard, before[shard], now, id)
			}
		}
		before = h.actors()
	}
	if err := all[0].leave(); err != nil {
		t.Fatal(err)
	}
	settled(t, h, n, first, all[1])
	for shard, now := range h.actors() {
		if was := before[shard]; now != was && was.replica != "b" {
			t.Errorf("shard %d moved from %v to %v although b left", shard, was, now)
		}
	}
	wantNoViolations(t, h)
}

func TestCandidate_GracefulHandover(t *testing.T) {
	const rounds = 20
	h := newHistory()
	var gaps []time.Duration
	present := join(t, etcd(t), "a-0", h.body("a-0"))
	waitFor(t, h, "a-0")
	for round := range rounds {
		id := fmt.Sprintf("a-%d", round+1)
		next := join(t, etcd(t), id, h.body(id))
		testkit.Eventually(t, testTimeout, func() error {
			if next.Status().Shards[0].ReplicaID == "" {
				return fmt.Errorf("%s does not see the leader yet", id)
			}
			return next.Check()
		})
		if err := present.leave(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, h, id)
		present = next
	}
	acts := h.all()
	for i := 1; i < len(acts); i++ {
		gaps = append(gaps, acts[i].start.Sub(acts[i-1].end))
	}
	slices.Sort(gaps)
	t.Logf("%d handovers: median %v, longest %v without a leader", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
	if median := gaps[len(gaps)/2]; median > 200*time.Millisecond {
		t.Errorf("median gap of a graceful handover = %v, want at most 200 ms", median)
	}
	wantNoViolations(t, h)
}

func TestCandidate_FailedBodyRestartsAfterBackoff(t *testing.T) {
	t.Parallel()
	var starts []time.Time
	began := make(chan time.Time)
	p := join(t, etcd(t), "a", func(ctx context.Context, _ *term.Term) error {
		began <- time.Now()
		return errors.New("cannot work")
	})
	for range 3 {
		starts = append(starts, receive(t, began))
	}
	for i, want := range []time.Duration{time.Second, 2 * time.Second} {
		if backoff := starts[i+1].Sub(starts[i]); backoff < want {
			t.Errorf("backoff %d = %v, want at least %v", i, backoff, want)
		}
	}
	if err := p.Check(); err != nil {
		t.Errorf("the session ended with a failing body: %v", err)
	}
	if err := p.leave(); err != nil {
		t.Fatal(err)
	}
	wantNoKeys(t)
}

// A replica that is alive but cannot work must not block a shard.
func TestCandidate_ReplicaThatCannotWorkLosesTheShard(t *testing.T) {
	t.Parallel()
	h := newHistory()
	// The third replica works. It gets the shard although another one may own it.
	broken := func(context.Context, *term.Term) error { return errors.New("cannot work") }
	join(t, etcd(t), "a", broken)
	join(t, etcd(t), "b", broken)
	join(t, etcd(t), "c", h.body("c"))
	waitFor(t, h, "c")
}

func TestCandidate_MemberWithoutShards(t *testing.T) {
	p := join(t, etcd(t), "a", nil, shards(0))
	testkit.Eventually(t, testTimeout, p.Check)
	if status := p.Status(); !status.Session.Alive || len(status.Shards) != 0 {
		t.Errorf("status = %+v", status)
	}
	answer, err := p.client.Get(t.Context(), membersPrefix(t)+"a")
	if err != nil || len(answer.Kvs) != 1 {
		t.Errorf("member key: %v, %v", answer, err)
	}
}

func TestCandidate_ExistingMemberKeyIsNotOverwritten(t *testing.T) {
	client := dial(t, etcd(t), &faultyConn{})
	key := membersPrefix(t) + "a"
	if _, err := client.Put(t.Context(), key, "foreign"); err != nil {
		t.Fatal(err)
	}
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"))
	testkit.Eventually(t, testTimeout, func() error {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), "exists already") {
			return fmt.Errorf("Check = %v, want it to say that the name is in use", err)
		}
		return nil
	})
	answer, err := client.Get(t.Context(), key)
	if err != nil || len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != "foreign" {
		t.Fatalf("foreign member key: %v, %v", answer, err)
	}
	if _, err := client.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	waitFor(t, h, "a")
}

func TestCandidate_DifferentShardCountsNeverRunTogether(t *testing.T) {
	h := newHistory()
	old := join(t, etcd(t), "old", h.body("old"), shards(2))
	allHeld(t, h, 2)
	next := join(t, etcd(t), "new", h.body("new"), shards(4))
	testkit.Eventually(t, testTimeout, func() error {
		if reason := next.Status().Session.LastError; !strings.Contains(reason, "divides the work into 2 shards") {
			return fmt.Errorf("status says %q, want why nothing is claimed", reason)
		}
		return nil
	})
	if shares := h.shares(); !maps.Equal(shares, map[string]int{"old": 2}) {
		t.Errorf("shares while both are there: %v", shares)
	}
	if err := old.leave(); err != nil {
		t.Fatal(err)
	}
	allHeld(t, h, 4)
	wantNoViolations(t, h)
}

func TestCandidate_RequestsAtRestAreIndependentOfShards(t *testing.T) {
	t.Parallel()
	const n, watched = 64, 8 * time.Second
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"), shards(n), ttl(term.DefaultTTL))
	allHeld(t, h, n)
	before, began := p.conn.requests.Load(), time.Now()
	testkit.Eventually(t, testTimeout, func() error { // real time
		if time.Since(began) < watched {
			return errors.New("still counting")
		}
		return nil
	})
	requests := p.conn.requests.Load() - before
	perSecond := float64(requests) / time.Since(began).Seconds()
	t.Logf("%d requests in %v: %.2f per second", requests, watched, perSecond)
	if perSecond > 1 || requests == 0 {
		t.Errorf("%.2f requests per second at rest, want at most 1 and some", perSecond)
	}
}

func TestCandidate_Metrics(t *testing.T) {
	h := newHistory()
	registry := prometheus.NewRegistry()
	p := join(t, etcd(t), "a", h.body("a"), shards(3), func(c *term.Config) { c.Metrics = registry })
	allHeld(t, h, 3)
	p.revokeLease(t)
	want := map[string]float64{
		"trivet_terms_held": 3, "trivet_term_takeovers_total": 6, "trivet_term_losses_total": 3, "trivet_term_releases_total": 0,
		"trivet_term_gap_seconds": 0, "trivet_term_ready": 1, "trivet_session_ttl_seconds": 2,
		"trivet_session_losses_total": 1, // one, however many terms end with it
	}
	testkit.Eventually(t, testTimeout, func() error {
		got := values(t, registry)
		if remaining := got["trivet_session_remaining_seconds"]; remaining <= 0 || remaining > 2 {
			return fmt.Errorf("%v s remaining", remaining)
		}
		delete(got, "trivet_session_remaining_seconds")
		if !maps.Equal(got, want) {
			return fmt.Errorf("metrics are %v, want %v", got, want)
		}
		return nil
	})
}

// values returns the sum of each metric over its labels.
func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			sums[family.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sums
}

func TestCandidate_RunTwiceIsAnError(t *testing.T) {
	h := newHistory()
	p := join(t, etcd(t), "a", h.body("a"))
	waitFor(t, h, "a")
	if err := p.Run(t.Context(), h.body("a")); err == nil {
		t.Error("a second Run at the same time began")
	}
}

func TestNew_ReportsEveryProblem(t *testing.T) {
	_, err := term.New(nil, term.Config{
		Member: term.Member{ID: "A/b", Service: "", Cluster: "east", GRPCAddress: "nowhere"}, Shards: -1, TTL: 2500 * time.Millisecond,
	})
	if err == nil {
		t.Fatal("New accepted it")
	}
	for _, want := range []string{`replica id "A/b"`, `service ""`, `gRPC address "nowhere"`, "-1 shards", "TTL 2.5s", "no logger"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %q", err, want)
		}
	}
}

func TestNew_StartsNothing(t *testing.T) {
	p := newTestReplica(t, "a", nil, shards(2))
	want := term.Status{
		Session: term.SessionStatus{LastError: "not running"},
		Shards:  []term.ShardStatus{{Shard: 0}, {Shard: 1}},
	}
	if diff := cmp.Diff(want, p.Status(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if err := p.Check(); err == nil {
		t.Error("Check of a candidate that does not run succeeds")
	}
	if _, _, ok := p.Session(); ok {
		t.Error("a candidate that does not run has a session")
	}
}

func TestDirectory_FollowsMembersOfEveryService(t *testing.T) {
	client := dial(t, etcd(t), &faultyConn{})
	ctx, cancel := context.WithCancel(t.Context())
	directory := term.NewDirectory(client, clusterName(t), slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- directory.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	testkit.Eventually(t, testTimeout, directory.Check)
	changed := directory.Changed()
	if members := directory.Members(); len(members) != 0 {
		t.Fatalf("members before any joined: %v", members)
	}
	inService := func(name string) option { return func(c *term.Config) { c.Member.Service = name } }
	join(t, etcd(t), "b", nil, shards(0), inService("slicesvc"))
	leaving := join(t, etcd(t), "a", nil, shards(0), inService("slicesvc"))
	join(t, etcd(t), "z", nil, shards(0), inService("bootstrapsvc"))
	if _, err := client.Put(t.Context(), etcdconn.KeyPrefix(clusterName(t))+"members/slicesvc/odd", "{"); err != nil {
		t.Fatal(err)
	}
	receive(t, changed)
	wantMembers(t, directory, "bootstrapsvc/z", "slicesvc/a", "slicesvc/b")
	if got := directory.Members()[1]; got.GRPCAddress != "a.test:7601" || got.Cluster != clusterName(t) || got.StartTime.IsZero() {
		t.Errorf("member = %+v", got)
	}
	if err := leaving.leave(); err != nil {
		t.Fatal(err)
	}
	wantMembers(t, directory, "bootstrapsvc/z", "slicesvc/b")
}

func wantMembers(t *testing.T, d *term.Directory, want ...string) {
	t.Helper()
	testkit.Eventually(t, testTimeout, func() error {
		var got []string
		for _, m := range d.Members() {
			got = append(got, m.Service+"/"+m.ID)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("members are %v, want %v", got, want)
		}
		return nil
	})
}
