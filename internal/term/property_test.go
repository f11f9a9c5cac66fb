package term_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var (
	seed   = flag.Uint64("term.seed", 0, "seed of the histories; 0 draws one")
	faults = flag.Int("term.faults", 25, "faults in each history")
)

// Three replicas share six shards while leases are revoked, renewals frozen, etcd compacted, and
// replicas restarted. Bodies of one shard never overlap, epochs grow, and in the end each shard is
// held.
func TestProperty_OneBodyPerShard(t *testing.T) {
	t.Parallel()
	const n = 6
	drawn := *seed
	if drawn == 0 {
		drawn = rand.Uint64()
	}
	t.Logf("reproduce with -term.seed=%d -term.faults=%d", drawn, *faults)
	random := rand.New(rand.NewPCG(drawn, 0))
	h := newHistory()
	s := &faultSequence{t: t, etcd: ownEtcd(t), h: h, random: random, shards: n}
	for i := range 3 {
		s.replicas = append(s.replicas, s.join(i))
	}
	allHeld(t, h, n)
	for range *faults {
		s.fault()
		sleepReal(time.Duration(random.IntN(700)) * time.Millisecond)
	}
	for _, p := range s.replicas {
		p.conn.frozen.Store(false)
	}
	allHeld(t, h, n)
	t.Logf("%d terms began; faults: %v", h.count(), s.faults)
	wantNoViolations(t, h)
}

// faultSequence applies random faults to its replicas.
type faultSequence struct {
	t        *testing.T
	etcd     *devcluster.Cluster
	h        *history
	random   *rand.Rand
	shards   int
	replicas []*testReplica
	joined   int
	faults   []string
}

func (s *faultSequence) join(place int) *testReplica {
	s.joined++
	id := fmt.Sprintf("r%d-%d", place, s.joined)
	return join(s.t, s.etcd, id, s.h.body(id), shards(s.shards))
}

// fault applies one random fault to one replica.
func (s *faultSequence) fault() {
	place := s.random.IntN(len(s.replicas))
	p := s.replicas[place]
	shard := s.random.IntN(s.shards)
	switch s.random.IntN(5) {
	case 0, 1:
		s.note("revoke", p.id)
		if lease, _, ok := p.Session(); ok {
			_, _ = p.client.Revoke(s.t.Context(), lease) // the lease may be gone
		}
	case 2:
		s.note("freeze or thaw", p.id)
		p.conn.frozen.Store(!p.conn.frozen.Load())
	case 3:
		s.note("leave and come back", p.id)
		if err := p.leave(); err != nil {
			s.t.Errorf("%s: Run = %v", p.id, err)
		}
		s.replicas[place] = s.join(place)
	default:
		s.note("compact", fmt.Sprint(shard))
		if answer, err := p.client.Get(s.t.Context(), termKey(s.t, shard), clientv3.WithLimit(1)); err == nil {
			_, _ = p.client.Compact(s.t.Context(), answer.Header.Revision) // another compaction may have been first
		}
	}
}

func (s *faultSequence) note(fault, target string) { s.faults = append(s.faults, fault+" "+target) }

// After a crash, a shard has no leader for at most the TTL, the second in which etcd expires
// leases, and the takeover pause.
func TestCandidate_CrashFailover(t *testing.T) {
	t.Parallel()
	h := newHistory()
	crashing := join(t, etcd(t), "a", h.body("a"))
	waitFor(t, h, "a")
	other := lower("a")
	next := join(t, etcd(t), other, h.body(other))
	testkit.Eventually(t, testTimeout, next.Check)
	began := time.Now()
	crashing.conn.dead.Store(true) // a crashed process sends nothing
	waitFor(t, h, other)
	took := time.Since(began)
	t.Logf("failover within %v at a TTL of 2 s", took)
	if took > 2*time.Second+1500*time.Millisecond+2*time.Second { // the last are for a busy machine
		t.Errorf("failover took %v, want about the TTL and a second", took)
	}
	wantNoViolations(t, h)
}
