package term_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/testkit"
)

var (
	seed   = flag.Uint64("term.seed", 0, "seed of the histories; 0 draws one")
	faults = flag.Int("term.faults", 25, "faults in each history")
)

// Three replicas share six shards while leases are revoked, renewals frozen, keys deleted, and replicas leave and come back.
// No two bodies may act for one shard at one time, epochs must grow, and in the end every shard must be held again.
func TestProperty_NoTwoActForOneShard(t *testing.T) {
	const n = 6
	drawn := *seed
	if drawn == 0 {
		drawn = rand.Uint64()
	}
	t.Logf("reproduce with -term.seed=%d -term.faults=%d", drawn, *faults)
	random := rand.New(rand.NewPCG(drawn, 0))
	h := newHistory()
	s := &scene{t: t, h: h, random: random, shards: n}
	for i := range 3 {
		s.replicas = append(s.replicas, s.join(i))
	}
	allHeld(t, h, n)
	for range *faults {
		s.fault()
		pauseReal(time.Duration(random.IntN(700)) * time.Millisecond)
	}
	for _, p := range s.replicas {
		p.wire.frozen.Store(false)
	}
	allHeld(t, h, n)
	t.Logf("%d terms began; faults: %v", h.count(), s.did)
	noViolations(t, h)
}

// scene is one history in the making.
type scene struct {
	t        *testing.T
	h        *history
	random   *rand.Rand
	shards   int
	replicas []*participant
	joined   int
	did      []string
}

func (s *scene) join(place int) *participant {
	s.joined++
	id := fmt.Sprintf("r%d-%d", place, s.joined)
	return join(s.t, etcd(s.t), id, s.h.body(id), shards(s.shards))
}

// fault does one thing to one replica.
func (s *scene) fault() {
	place := s.random.IntN(len(s.replicas))
	p := s.replicas[place]
	shard := s.random.IntN(s.shards)
	switch s.random.IntN(5) {
	case 0, 1:
		s.note("revoke", p.id)
		if lease, _, ok := p.Session(); ok {
			_, _ = p.client.Revoke(s.t.Context(), lease) // it may have gone already
		}
	case 2:
		s.note("freeze or thaw", p.id)
		p.wire.frozen.Store(!p.wire.frozen.Load())
	case 3:
		s.note("leave and come back", p.id)
		if err := p.leave(); err != nil {
			s.t.Errorf("%s: Run = %v", p.id, err)
		}
		s.replicas[place] = s.join(place)
	default:
		s.note("compact", fmt.Sprint(shard))
		if answer, err := p.client.Get(s.t.Context(), termKey(s.t, shard), clientv3.WithLimit(1)); err == nil {
			_, _ = p.client.Compact(s.t.Context(), answer.Header.Revision) // another may have been faster
		}
	}
}

func (s *scene) note(what, whom string) { s.did = append(s.did, what+" "+whom) }

// pauseReal lets a real etcd and real replicas go on for a while; nothing is expected to be over afterwards.
func pauseReal(d time.Duration) { <-time.After(d) }

// The longest time without a holder after a crash is the TTL, the second in which etcd notices, and the pause after a
// takeover that nobody handed over.
func TestCandidate_CrashFailover(t *testing.T) {
	h := newHistory()
	crashing := join(t, etcd(t), "a", h.body("a"))
	waitFor(t, h, "a")
	other := lower("a")
	next := join(t, etcd(t), other, h.body(other))
	testkit.Eventually(t, patience, next.Check)
	began := time.Now()
	crashing.wire.dead.Store(true) // a crashed process sends nothing any more, not even that it goes
	waitFor(t, h, other)
	took := time.Since(began)
	t.Logf("failover within %v at a TTL of 2 s", took)
	if took > 2*time.Second+1500*time.Millisecond {
		t.Errorf("failover took %v, want about the TTL and a second", took)
	}
	noViolations(t, h)
}
