package leasesvc_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	takeoverShards = 8
	beatEvery      = time.Second
	// beatGrace is two seconds longer than beatFloor, the grace period of a suspect holder after a
	// takeover.
	beatGrace = 8 * time.Second
	beatFloor = beatEvery + 5*time.Second
)

// newReplicaConfig returns a configuration for replicas that keep sessions and write no Leases.
func newReplicaConfig(t *testing.T, plane *devcluster.Cluster) replicaConfig {
	t.Helper()
	admin, err := kubernetes.NewForConfig(plane.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := leasesvc.DefaultConfig()
	cfg.FillTime = time.Nanosecond
	cfg.Shards = takeoverShards
	cfg.Classes[0].HeartbeatInterval, cfg.Classes[0].Grace, cfg.Classes[0].RenewInterval = beatEvery, beatGrace, beatEvery
	return replicaConfig{
		plane: plane, admin: admin, cluster: testkit.Namespace(t, admin), config: cfg, loops: []string{"-" + leasesvc.WritebackLoop},
	}
}

// stored returns the silences in the checkpoints of all shards by holder, and how many of the
// holders stay expired.
func stored(t *testing.T, store *sessioncontroller.CheckpointStore, rule checkpoint.Rule) (names map[string]time.Duration, expired int) {
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
				expired++
			}
		}
	}
	return names, expired
}

// inShards returns the holders whose shard is marked.
func inShards(holders []agent.Holder, marked map[int]bool) []agent.Holder {
	var kept []agent.Holder
	for _, h := range holders {
		if marked[shard.Of(h.Class, h.Name, takeoverShards)] {
			kept = append(kept, h)
		}
	}
	return kept
}

// awaitShares waits until each replica holds shards, and the replicas serve all shards together.
func awaitShares(t *testing.T, replicas ...*replica) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		total := 0
		for _, r := range replicas {
			n := r.served()
			if total += n; n == 0 {
				return fmt.Errorf("%s serves no shard", r.address)
			}
		}
		if total != takeoverShards {
			return fmt.Errorf("%d of %d shards are served", total, takeoverShards)
		}
		return nil
	})
}

// served counts the shards whose sessions the replica keeps.
func (r *replica) served() int {
	n := 0
	for number := range r.held() {
		_, err := r.leases.GetLease(r.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(nameInShard(number, takeoverShards, "absent"))})
		if status.Code(err) == codes.NotFound {
			n++
		}
	}
	return n
}

// await waits until the replica serves the shard of a holder, and returns the lease.
func (r *replica) await(name string) *leasev1.Lease {
	r.t.Helper()
	var lease *leasev1.Lease
	testkit.Eventually(r.t, patience, func() error {
		response, err := r.leases.GetLease(r.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
		if code := status.Code(err); code == codes.Unavailable || code == codes.FailedPrecondition {
			return err // no replica, or still the previous one, leads the shard
		}
		if err != nil {
			r.t.Fatal(err)
		}
		lease = response.Lease
		return nil
	})
	return lease
}

// One of two replicas is killed while thousands of holders beat. The other replica hears the live
// holders before they expire. Holders that had expired are expired at once. Holders that had become
// silent keep the time that a live holder needs. Beside other tests, two processors are too few for
// thousands of beats with the race detector.
func TestTakeover_LiveHoldersSurviveAndExpiredOnesStayExpired(t *testing.T) {
	p := newReplicaConfig(t, testkit.Cluster(t))
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	lost := a.held()
	live, gone := agentHolders("live", 3000), agentHolders("gone", 60)
	silent := inShards(agentHolders("silent", 100), lost)
	var agents []*agent.Agent
	for i := range 6 {
		each, _ := beatFor(t, live[i*500:(i+1)*500], a, b)
		agents = append(agents, each)
	}
	goneAgent, stopGone := beatFor(t, gone, a, b)
	silentAgent, stopSilent := beatFor(t, silent, a, b)
	awaitRegistered(t, append(agents, goneAgent, silentAgent)...)
	stopGone()

	store := sessioncontroller.NewCheckpointStore(testkit.Etcd(t), p.cluster, leasesvc.ServiceName)
	rule := checkpoint.Rule{TTL: beatGrace, MinGrace: beatFloor}
	testkit.Eventually(t, 40*time.Second, func() error {
		if _, n := stored(t, store, rule); n != len(gone) {
			return fmt.Errorf("%d of %d expired holders are stored", n, len(gone))
		}
		return nil
	})
	stopSilent()
	testkit.Eventually(t, beatGrace, func() error {
		names, _ := stored(t, store, rule)
		if n := len(names) - len(gone); n != len(silent) {
			return fmt.Errorf("%d of %d silent holders are stored", n, len(silent))
		}
		return nil
	})
	expired := watchExpired(t, b)
	killed := time.Now()
	go a.kill() // it takes a while, without any message

	for _, h := range inShards(gone, lost) {
		if lease := b.await(h.Name); lease.State != leasev1.Lease_STATE_EXPIRED {
			t.Errorf("%s had expired and is %v at the new replica", h.Name, lease.State)
		}
	}
	t.Logf("the expired holders were known %v after the kill", time.Since(killed).Round(time.Millisecond))
	for _, h := range silent {
		lease := b.await(h.Name)
		left := time.Until(lease.ExpireTime.AsTime())
		if lease.State == leasev1.Lease_STATE_EXPIRED || left > beatFloor {
			t.Errorf("%s became silent and is %v with %v left, want %v at most", h.Name, lease.State, left, beatFloor)
		}
	}
	// Half of them beat again, late.
	time.Sleep(beatFloor / 2)
	late, lateStop := beatFor(t, silent[:len(silent)/2], b)
	defer lateStop()

	awaitRegistered(t, append(agents, late)...)
	moved := inShards(live, lost)
	var worst time.Duration
	for _, h := range moved {
		worst = max(worst, b.await(h.Name).StartTime.AsTime().Sub(killed))
	}
	t.Logf("%d live holders of the lost shards beat at the other replica within %v after the kill", len(moved), worst.Round(time.Millisecond))
	// One interval, one TTL and the delays of a busy machine.
	if limit := beatEvery + replicaTTL + 3*time.Second; worst > limit {
		t.Errorf("the last one beat after %v, want %v at most", worst, limit)
	}
	testkit.Eventually(t, beatGrace+patience, func() error {
		if n := b.service.Counts()["expired"]; n != int64(len(gone)+len(silent)-len(silent)/2) {
			return fmt.Errorf("%d are expired, want the stopped ones", n)
		}
		return nil
	})
	expired.expectNotExpired(t, "after the takeover", live)
	expired.expectNotExpired(t, "late", silent[:len(silent)/2])
}

// Replicas start and stop while thousands of holders beat, so that shards move back and forth.
func TestTakeover_NoHolderExpiresWhileShardsMove(t *testing.T) {
	t.Parallel()
	p := newReplicaConfig(t, testkit.Cluster(t))
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	live := agentHolders("live", 3000)
	var agents []*agent.Agent
	for i := range 6 {
		each, _ := beatFor(t, live[i*500:(i+1)*500], a, b)
		agents = append(agents, each)
	}
	awaitRegistered(t, agents...)
	expired := watchExpired(t, a, b)
	for round := range 3 {
		c := startReplica(t, fmt.Sprintf("replica-c%d", round), p)
		expired.follow(t, c)
		awaitShares(t, a, b, c)
		awaitSessions(t, len(live), a, b, c)
		c.stop()
		awaitShares(t, a, b)
		awaitSessions(t, len(live), a, b)
	}
	awaitRegistered(t, agents...)
	expired.expectNotExpired(t, "while shards moved", live)
	for _, each := range agents {
		if s := each.Status(); len(s.Superseded) > 0 || len(s.Rejected) > 0 {
			t.Errorf("%d superseded and %d rejected", len(s.Superseded), len(s.Rejected))
		}
	}
}

// awaitSessions waits until the replicas keep a live session for each holder.
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
