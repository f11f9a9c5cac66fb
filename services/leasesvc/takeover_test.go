package leasesvc_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpointstore"
)

const (
	takeoverShards = 8
	beatEvery      = time.Second
	// beatGrace leaves a suspect two seconds less than the whole grace at its next replica: beatFloor.
	beatGrace = 8 * time.Second
	beatFloor = beatEvery + 5*time.Second
)

// takeoverPlan keeps sessions and writes no Leases.
func takeoverPlan(t *testing.T) plan {
	cfg := leasesvc.DefaultConfig()
	cfg.Shards = takeoverShards
	cfg.Classes[0].HeartbeatInterval, cfg.Classes[0].Grace, cfg.Classes[0].RenewInterval = beatEvery, beatGrace, beatEvery
	return plan{cluster: testkit.Namespace(t, testkit.Kube(t)), config: cfg, loops: []string{"-" + leasesvc.WritebackLoop}}
}

// remembered are the holders that the checkpoints of all shards name, and how many of them stay expired.
func remembered(t *testing.T, store *checkpointstore.Store, rule checkpoint.Rule) (names map[string]time.Duration, settled int) {
	t.Helper()
	names = map[string]time.Duration{}
	for number := range takeoverShards {
		value, err := store.Read(t.Context(), number)
		if err != nil {
			t.Fatal(err)
		}
		if value == nil {
			continue
		}
		entries, err := checkpoint.Decode(value)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names[e.Name] = e.Silence
			if rule.StaysExpired(e.Silence) {
				settled++
			}
		}
	}
	return names, settled
}

// inShards keeps the holders whose shard is marked.
func inShards(holders []agent.Holder, marked map[int]bool) []agent.Holder {
	var kept []agent.Holder
	for _, h := range holders {
		if marked[shard.Of(h.Class, h.Name, takeoverShards)] {
			kept = append(kept, h)
		}
	}
	return kept
}

// awaitShares waits until every one of the replicas holds shards, and all are held and answered for.
func awaitShares(t *testing.T, replicas ...*replica) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		total := 0
		for _, r := range replicas {
			n := r.answers()
			if total += n; n == 0 {
				return fmt.Errorf("%s answers for no shard", r.address)
			}
		}
		if total != takeoverShards {
			return fmt.Errorf("%d of %d shards are answered for", total, takeoverShards)
		}
		return nil
	})
}

// answers counts the shards whose sessions the replica keeps.
func (r *replica) answers() int {
	n := 0
	for number := range r.held() {
		_, err := r.client.GetLease(r.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(nobodyIn(number))})
		if status.Code(err) == codes.NotFound {
			n++
		}
	}
	return n
}

// nobodyIn is a name in the shard that nobody has.
func nobodyIn(number int) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("nobody-%d", i); shard.Of("node", name, takeoverShards) == number {
			return name
		}
	}
}

// await waits until the replica answers for the lease of a holder, and returns its first answer.
func (r *replica) await(name string) *leasev1.Lease {
	r.t.Helper()
	var lease *leasev1.Lease
	testkit.Eventually(r.t, patience, func() error {
		response, err := r.client.GetLease(r.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
		if status.Code(err) == codes.Unavailable {
			return err
		}
		if err != nil {
			r.t.Fatal(err)
		}
		lease = response.Lease
		return nil
	})
	return lease
}

// One of two replicas is killed while thousands beat. Everybody who lives is heard by the other one in time and nobody of them
// is ever shown as expired; who has been dead for long is so at once; who had just fallen silent is left the time that a living
// one needs, and no more.
func TestTakeover_TheLivingAreHeardAndTheDeadStayDead(t *testing.T) {
	t.Parallel()
	p := takeoverPlan(t)
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	lost := a.held()
	living, dead := crowd("living", 3000), crowd("dead", 60)
	silent := inShards(crowd("silent", 100), lost)
	var agents []*agent.Agent
	for i := range 6 {
		each, _ := beatFor(t, living[i*500:(i+1)*500], a, b)
		agents = append(agents, each)
	}
	corpse, die := beatFor(t, dead, a, b)
	patient, fallSilent := beatFor(t, silent, a, b)
	awaitWelcome(t, append(agents, corpse, patient)...)
	die()

	store := checkpointstore.New(testkit.Etcd(t), p.cluster, leasesvc.ServiceName)
	rule := checkpoint.Rule{TTL: beatGrace, MinGrace: beatFloor}
	testkit.Eventually(t, 40*time.Second, func() error {
		if _, settled := remembered(t, store, rule); settled != len(dead) {
			return fmt.Errorf("%d of %d dead holders are remembered as such", settled, len(dead))
		}
		return nil
	})
	fallSilent()
	testkit.Eventually(t, beatGrace, func() error {
		names, _ := remembered(t, store, rule)
		if n := len(names) - len(dead); n != len(silent) {
			return fmt.Errorf("%d of %d silent holders are remembered", n, len(silent))
		}
		return nil
	})
	deaths := watchDeaths(t, b)
	killed := time.Now()
	go a.kill() // it takes a while to die; nobody hears of it

	for _, h := range inShards(dead, lost) {
		if lease := b.await(h.Name); lease.State != leasev1.Lease_STATE_EXPIRED {
			t.Errorf("%s, long dead, is %v at the new replica", h.Name, lease.State)
		}
	}
	t.Logf("the dead were known %v after the kill", time.Since(killed).Round(time.Millisecond))
	for _, h := range silent {
		lease := b.await(h.Name)
		left := time.Until(lease.Deadline.AsTime())
		if lease.State == leasev1.Lease_STATE_EXPIRED || left > beatFloor {
			t.Errorf("%s, silent of late, is %v with %v left, want %v at most", h.Name, lease.State, left, beatFloor)
		}
	}
	// Some of them lived after all, and took their time.
	time.Sleep(beatFloor / 2)
	late, lateStop := beatFor(t, silent[:len(silent)/2], b)
	defer lateStop()

	awaitWelcome(t, append(agents, late)...)
	moved := inShards(living, lost)
	var worst time.Duration
	for _, h := range moved {
		worst = max(worst, b.await(h.Name).StartTime.AsTime().Sub(killed))
	}
	t.Logf("%d living holders of the lost shards were heard by the other replica %v after the kill at the latest", len(moved), worst.Round(time.Millisecond))
	// One interval and one TTL, and what a busy machine takes.
	if limit := beatEvery + replicaTTL + 3*time.Second; worst > limit {
		t.Errorf("the last was heard after %v, want %v at most", worst, limit)
	}
	testkit.Eventually(t, beatGrace+patience, func() error {
		if n := b.service.Counts()["expired"]; n != int64(len(dead)+len(silent)-len(silent)/2) {
			return fmt.Errorf("%d are expired, want the dead and those who stayed silent", n)
		}
		return nil
	})
	deaths.expectAlive(t, "after the takeover", living)
	deaths.expectAlive(t, "late", silent[:len(silent)/2])
}

// Replicas come and go in good order while thousands beat, so that shards move back and forth. Nobody expires, and in the end
// everybody is welcome where it belongs.
func TestTakeover_NobodyExpiresWhileShardsMoveBackAndForth(t *testing.T) {
	p := takeoverPlan(t)
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	living := crowd("living", 3000)
	var agents []*agent.Agent
	for i := range 6 {
		each, _ := beatFor(t, living[i*500:(i+1)*500], a, b)
		agents = append(agents, each)
	}
	awaitWelcome(t, agents...)
	deaths := watchDeaths(t, a, b)
	for round := range 3 {
		c := startReplica(t, fmt.Sprintf("replica-c%d", round), p)
		deaths.follow(t, c)
		awaitShares(t, a, b, c)
		awaitSessions(t, len(living), a, b, c)
		c.stop()
		awaitShares(t, a, b)
		awaitSessions(t, len(living), a, b)
	}
	awaitWelcome(t, agents...)
	deaths.expectAlive(t, "while shards moved", living)
	for _, each := range agents {
		if s := each.Status(); len(s.Superseded) > 0 || len(s.Rejected) > 0 {
			t.Errorf("%d superseded and %d rejected", len(s.Superseded), len(s.Rejected))
		}
	}
}

// awaitSessions waits until the replicas keep a living session for every one of the holders.
func awaitSessions(t *testing.T, holders int, replicas ...*replica) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		alive := int64(0)
		for _, r := range replicas {
			alive += r.service.Counts()["alive"]
		}
		if alive != int64(holders) {
			return fmt.Errorf("%d of %d are alive", alive, holders)
		}
		return nil
	})
}
