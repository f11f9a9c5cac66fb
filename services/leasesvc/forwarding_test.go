package leasesvc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// foreignHolders returns those of n holders whose shards the replica does not hold.
func foreignHolders(prefix string, n int, r *replica) []agent.Holder {
	others := map[int]bool{}
	for number := range takeoverShards {
		others[number] = !r.held()[number]
	}
	return inShards(agentHolders(prefix, n), others)
}

// awaitAlive waits until the replica has a live session of the holder.
func (r *replica) awaitAlive(name string) *leasev1.Lease {
	r.t.Helper()
	var lease *leasev1.Lease
	testkit.Eventually(r.t, patience, func() error {
		response, err := r.leases.GetLease(r.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
		if err != nil {
			return err
		}
		if lease = response.Lease; lease.State != leasev1.Lease_STATE_ALIVE {
			return fmt.Errorf("%s is %v", name, lease.State)
		}
		return nil
	})
	return lease
}

func TestForwarding_SessionExistsBeforeTheHolderMoves(t *testing.T) {
	t.Parallel()
	p := newReplicaConfig(t, testkit.Cluster(t))
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	foreign := foreignHolders("foreign", 40, a)
	unary, streamed := foreign[0].Name, foreign[1].Name

	rejectionOf := func(response *leasev1.HeartbeatResponse, err error) *leasev1.Rejection {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return response.Results[0].GetRejection()
	}
	request := &leasev1.HeartbeatRequest{Beats: []*leasev1.Beat{{Holder: holder(unary, "1"), Sequence: 41}}}
	if why := rejectionOf(a.client.Heartbeat(t.Context(), request)); why.GetReason() != "NOT_LEADER" || why.RedirectAddress != b.address || !why.Forwarded {
		t.Fatalf("rejected with %v, want NOT_LEADER, forwarded to %s", why, b.address)
	}
	if lease := b.awaitAlive(unary); lease.Holder.BootId != "1" {
		t.Errorf("the session is %v", lease)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := a.client.StreamHeartbeats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	reported := register(7, holder(streamed, "1"))
	reported.Registrations[0].Report = &leasev1.Report{
		ObservedAge: durationpb.New(beatEvery), CutOffAge: durationpb.New(time.Minute), Conditions: []*leasev1.ReportedCondition{{Type: "DiskPressure", Status: metav1.Condition_STATUS_TRUE}},
	}
	if why := exchange(t, s, reported).RegistrationResults[0].GetRejection(); why.GetRedirectAddress() != b.address || !why.GetForwarded() {
		t.Errorf("rejected with %v, want it forwarded", why)
	}
	lease := b.awaitAlive(streamed)
	const roundedUp = time.Millisecond // a session keeps the time of its beat in milliseconds, never too early
	if ago := time.Since(lease.ObserveTime.AsTime()); ago < beatEvery-roundedUp || len(lease.Conditions) != 1 || !lease.LastBeatTime.AsTime().After(lease.ObserveTime.AsTime()) {
		t.Errorf("the forwarded beat has lost its report: observed %v ago, %v", ago, lease)
	}
	if ago := time.Since(lease.CutOffTime.AsTime()); ago < time.Minute-roundedUp || ago > 2*time.Minute {
		t.Errorf("by the forwarded beat its holder is cut off since %v", lease.CutOffTime)
	}

	// A forwarded beat is not forwarded again.
	forwarded, err := a.peers.ForwardHeartbeats(t.Context(), &leasev1.ForwardHeartbeatsRequest{
		ReplicaId: "replica-c", Beats: []*leasev1.ForwardedBeat{{Beat: &leasev1.Beat{Holder: holder(foreign[2].Name, "1"), Sequence: 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if why := forwarded.Results[0].GetRejection(); why.GetReason() != "NOT_LEADER" || why.RedirectAddress != b.address || why.Forwarded {
		t.Errorf("rejected with %v, want it not forwarded", why)
	}
	if sent := a.beats("trivet_lease_forward_offered_total", "accepted"); sent != 2 {
		t.Errorf("%v beats were accepted for forwarding, want 2", sent)
	}
	testkit.Eventually(t, patience, func() error {
		if sent := a.beats("trivet_lease_forward_beats_total", "forwarded"); sent != 2 {
			return fmt.Errorf("%v beats were forwarded, want 2", sent)
		}
		return nil
	})
}

func TestForwarding_AgeNeverMovesTheLastBeatBack(t *testing.T) {
	t.Parallel()
	p := newReplicaConfig(t, testkit.Cluster(t))
	r := startReplica(t, "replica-a", p)
	awaitShares(t, r)
	send := func(sequence uint64, age time.Duration) time.Duration {
		t.Helper()
		_, err := r.peers.ForwardHeartbeats(t.Context(), &leasev1.ForwardHeartbeatsRequest{ReplicaId: "replica-c", Beats: []*leasev1.ForwardedBeat{
			{Beat: &leasev1.Beat{Holder: holder("n1", "1"), Sequence: sequence}, Age: durationpb.New(age)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(r.await("n1").ObserveTime.AsTime())
	}
	begin := time.Now()
	if ago := send(1, 3*time.Second); ago < 2900*time.Millisecond || ago > 3*time.Second+time.Since(begin) {
		t.Errorf("a beat of 3 s ago counts as heard %v ago", ago)
	}
	begin = time.Now()
	if ago := send(2, time.Second); ago < 900*time.Millisecond || ago > time.Second+time.Since(begin) {
		t.Errorf("a newer beat of 1 s ago counts as heard %v ago", ago)
	}
	if ago := send(3, time.Hour); ago > time.Second+time.Since(begin) {
		t.Errorf("a late beat moved the last beat back to %v ago", ago)
	}
}

// A shard moves to another replica while its holders beat on a stream to the first one, and never
// move. No beat is lost.
func TestForwarding_NoBeatIsLostWhileAShardMoves(t *testing.T) {
	t.Parallel()
	p := newReplicaConfig(t, testkit.Cluster(t))
	a := startReplica(t, "replica-a", p)
	awaitShares(t, a)
	var names []*leasev1.Holder
	for number := range takeoverShards {
		for i := 0; ; i++ {
			if name := fmt.Sprintf("static-%d", i); shard.Of("node", name, takeoverShards) == number {
				names = append(names, holder(name, "1"))
				break
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := a.client.StreamHeartbeats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, s, register(1, names...))
	b := startReplica(t, "replica-b", p)
	expired := watchExpired(t, a, b)
	handles := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	sequence, lost := uint64(1), 0
	forwarded := map[uint32]bool{}
	// The holders beat for longer than the grace period, a little faster than granted.
	for begin := time.Now(); time.Since(begin) < beatGrace+4*time.Second; time.Sleep(beatEvery * 3 / 4) {
		sequence++
		for _, rejected := range exchange(t, s, beats(sequence, handles...)).RejectedHandles {
			switch why := rejected.Rejection; {
			case why.Forwarded:
				forwarded[rejected.Handle] = true
			case why.RedirectAddress != "":
				lost++
				t.Errorf("handle %d was rejected with %v and not forwarded", rejected.Handle, why)
			}
		}
	}
	if len(forwarded) == 0 || len(forwarded) != len(b.held()) {
		t.Errorf("beats of %d holders were forwarded, and replica-b holds %d shards with one holder each", len(forwarded), len(b.held()))
	}
	for i, h := range names {
		if r := map[bool]*replica{true: b, false: a}[forwarded[handles[i]]]; r != nil {
			r.awaitAlive(h.Name)
		}
	}
	expired.mu.Lock()
	defer expired.mu.Unlock()
	if len(expired.seen) > 0 || lost > 0 {
		t.Errorf("expired: %v", expired.seen)
	}
}
