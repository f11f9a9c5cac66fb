package leasesvc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func entryOf(class, name string, silence time.Duration) checkpoint.Entry {
	return checkpoint.Entry{Class: class, Name: name, Boot: "1", Silence: silence}
}

// A replica ignores checkpoints that it cannot read and holders of other shards, and overwrites
// both.
func TestCheckpoints_UnreadableOnesGrantAFullGracePeriod(t *testing.T) {
	t.Parallel()
	p := newReplicaConfig(t, testkit.Cluster(t))
	etcd := testkit.Etcd(t)
	good := checkpoint.Encode([]checkpoint.Entry{entryOf("node", "n1", time.Hour)})
	future := append([]byte{9}, good[1:]...)
	elsewhere := (shard.Of("node", "stranger", takeoverShards) + 1) % takeoverShards
	stored := map[int]string{0: "not a checkpoint", 1: "", 2: string(good[:len(good)-3]), 3: string(future), 4: strings.Repeat("x", 1<<20)}
	stored[elsewhere] = string(checkpoint.Encode([]checkpoint.Entry{entryOf("node", "stranger", time.Hour), entryOf("former", "n1", time.Hour)}))
	for number, value := range stored {
		key := fmt.Sprintf("%scheckpoints/leasesvc/%d", etcdconn.KeyPrefix(p.cluster), number)
		if _, err := etcd.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	r := startReplica(t, "replica-a", p)
	awaitShares(t, r)
	if got := r.service.Counts(); got["leases"] != 0 {
		t.Errorf("sessions of absent holders: %v", got)
	}
	a, _ := beatFor(t, agentHolders("live", 100), r)
	awaitRegistered(t, a)
	store := sessioncontroller.NewCheckpointStore(etcd, p.cluster, leasesvc.ServiceName)
	testkit.Eventually(t, patience, func() error {
		for number := range takeoverShards {
			if value, err := store.Read(t.Context(), number); err != nil || value != nil {
				return fmt.Errorf("shard %d has %d bytes, error %v", number, len(value), err)
			}
		}
		return nil
	})
}

// A restored holder stays expired until it beats. A holder that was silent for longer than the
// retention is not restored.
func TestCheckpoints_ExpiredHoldersAreRestoredUntilTheyReturn(t *testing.T) {
	t.Parallel()
	p := newReplicaConfig(t, testkit.Cluster(t))
	etcd := testkit.Etcd(t)
	for number := range takeoverShards {
		var entries []checkpoint.Entry
		for i := range 40 {
			for prefix, silence := range map[string]time.Duration{"expired": time.Minute, "forgotten": 2 * time.Hour, "suspect": 5 * time.Second} {
				if name := fmt.Sprintf("%s-%d", prefix, i); shard.Of("node", name, takeoverShards) == number {
					entries = append(entries, entryOf("node", name, silence))
				}
			}
		}
		key := fmt.Sprintf("%scheckpoints/leasesvc/%d", etcdconn.KeyPrefix(p.cluster), number)
		if _, err := etcd.Put(t.Context(), key, string(checkpoint.Encode(entries))); err != nil {
			t.Fatal(err)
		}
	}
	r := startReplica(t, "replica-a", p)
	awaitShares(t, r)
	testkit.Eventually(t, beatFloor/2, func() error { // before the suspect holders expire
		if got := r.service.Counts(); got["expired"] != 40 || got["alive"]+got["suspect"] != 40 {
			return fmt.Errorf("counts %v, want 40 expired and 40 with a shorter grace period", got)
		}
		return nil
	})
	if lease := r.await("expired-0"); lease.State != leasev1.Lease_STATE_EXPIRED || lease.Holder.BootId != "1" || time.Since(lease.ObserveTime.AsTime()) < time.Minute {
		t.Errorf("a restored holder is %v", lease)
	}
	rebooted := agentHolders("expired", 40)
	for i := range rebooted {
		rebooted[i].BootID = "2"
	}
	a, _ := beatFor(t, rebooted[:20], r)
	b, _ := beatFor(t, agentHolders("expired", 40)[20:], r)
	awaitRegistered(t, a, b)
	if lease := r.await("expired-0"); lease.State != leasev1.Lease_STATE_ALIVE || lease.Holder.BootId != "2" {
		t.Errorf("a rebooted holder is %v", lease)
	}
	if lease := r.await("expired-20"); lease.State != leasev1.Lease_STATE_ALIVE || lease.Holder.BootId != "1" {
		t.Errorf("a holder that returned is %v", lease)
	}
	store := sessioncontroller.NewCheckpointStore(etcd, p.cluster, leasesvc.ServiceName)
	testkit.Eventually(t, patience, func() error {
		names, _ := stored(t, store, checkpoint.Rule{TTL: beatGrace, MinGrace: beatFloor})
		for name := range names {
			if strings.HasPrefix(name, "expired") || strings.HasPrefix(name, "forgotten") {
				return fmt.Errorf("the checkpoints still contain %s", name)
			}
		}
		return nil
	})
}
