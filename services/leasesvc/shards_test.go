package leasesvc_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func movedTo(address string) *leasev1.Refusal {
	return &leasev1.Refusal{Reason: "NOT_LEADER", MoveTo: address}
}

func at(epoch int64) *leasev1.Grant {
	g := grant()
	g.Epoch = epoch
	return g
}

func holders(names ...string) []*leasev1.Holder {
	var all []*leasev1.Holder
	for _, name := range names {
		all = append(all, holder(name, "1"))
	}
	return all
}

func TestHeartbeat_RedirectsHoldersOfOtherShards(t *testing.T) {
	f := newShardFixture(t, setup{})
	rejectedBeat := func(why *leasev1.Refusal) *leasev1.HeartbeatResult {
		return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Refusal{Refusal: why}}
	}
	granted := func(epoch int64) *leasev1.HeartbeatResult {
		return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Grant{Grant: at(epoch)}}
	}
	names := f.names()
	slices.Reverse(names)
	expectResults(t, []*leasev1.HeartbeatResult{
		rejectedBeat(movedTo("")), rejectedBeat(movedTo("there:7601")), granted(11), granted(10),
	}, f.beat(1, holders(names...)...))
	for number := range 2 {
		f.lose(number, "there:7601")
	}
	expectResults(t, []*leasev1.HeartbeatResult{
		rejectedBeat(movedTo("")), rejectedBeat(movedTo("there:7601")), rejectedBeat(movedTo("there:7601")), rejectedBeat(movedTo("there:7601")),
	}, f.beat(2, holders(names...)...))
}

func TestStreamHeartbeats_RedirectsHoldersOfOtherShards(t *testing.T) {
	f := newShardFixture(t, setup{})
	s := f.open()
	registered := func(handle uint32, epoch int64) *leasev1.Welcome {
		return &leasev1.Welcome{Handle: handle, Result: &leasev1.Welcome_Grant{Grant: at(epoch)}}
	}
	rejected := func(why *leasev1.Refusal) *leasev1.Welcome {
		return &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: why}}
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 1,
		Welcomes: []*leasev1.Welcome{registered(1, 10), registered(2, 11), rejected(movedTo("there:7601")), rejected(movedTo(""))},
	}, exchange(t, s, register(1, holders(f.names()...)...)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Sequence: 2, Grant: at(11)}, exchange(t, s, beats(2, 1, 2)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Sequence: 3, Grant: at(10)}, exchange(t, s, beats(3, 1)))

	f.lose(1, "there:7601")
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 4, Grant: at(10), RefusedHandles: []*leasev1.RefusedHandle{{Handle: 2, Refusal: movedTo("there:7601")}},
	}, exchange(t, s, beats(4, 1, 2)))

	f.leadership.hold(1, 12)
	f.awaitShard(1, "LEASE_NOT_FOUND")
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 5, RefusedHandles: []*leasev1.RefusedHandle{refused(2, "UNKNOWN_HANDLE")},
	}, exchange(t, s, beats(5, 2)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 6, Welcomes: []*leasev1.Welcome{registered(3, 12)},
	}, exchange(t, s, register(6, holder(f.names()[1], "1"))))
	f.expectCounts(map[string]int64{"sessions": 2, "alive": 2, "streams": 1})
	if got := f.sample()["trivet_lease_heartbeats_total not_leader"]; got != 3 {
		t.Errorf("%v heartbeats counted as not_leader, want 3", got)
	}
}

func TestStreamHeartbeats_EndsWithTheLastShardAndNotBefore(t *testing.T) {
	f := newShardFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder(f.names()[0], "1")))
	f.lose(0, "there:7601")
	// The client closes a stream whose holders have all moved.
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, RefusedHandles: []*leasev1.RefusedHandle{{Handle: 1, Refusal: movedTo("there:7601")}},
	}, exchange(t, s, beats(2, 1)))
	f.lose(1, "there:7601")
	response, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE, MoveTo: "there:7601",
	}, response)
	expectError(t, "after it", streamError(t, s), codes.Unavailable, "NOT_LEADER")
	err = exchangeError(t, f.open(), register(1, holder("n1", "1")))
	expectError(t, "a new stream", err, codes.Unavailable, "NOT_LEADER")
	if got := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey); got != "there:7601" {
		t.Errorf("grpc_address %q, want there:7601", got)
	}
}

func TestLeaseRPCs_NameTheOwnerOfTheShard(t *testing.T) {
	f := newShardFixture(t, setup{})
	for number, want := range map[int]string{2: "there:7601", 3: ""} {
		name := f.names()[number]
		_, get := f.client.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
		_, release := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(name, "1")})
		for what, err := range map[string]error{"get": get, "release": release} {
			expectError(t, what, err, codes.Unavailable, "NOT_LEADER")
			if got := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey); got != want {
				t.Errorf("%s in shard %d: grpc_address %q, want %q", what, number, got, want)
			}
		}
	}
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(f.names()[0], "1")}); err != nil {
		t.Errorf("release an absent holder in a held shard: %v", err)
	}
}

func TestListLeases_ReturnsTheHeldShards(t *testing.T) {
	f := newShardFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	names := f.names()
	f.beat(1, holders(names...)...)
	list := func(epoch int64) (epochs map[string]int64) {
		t.Helper()
		response, err := f.client.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if response.Freshness.Epoch != epoch || response.Freshness.ReplicaId != "replica-1" {
			t.Errorf("freshness %v, want epoch %d", response.Freshness, epoch)
		}
		epochs = map[string]int64{}
		for _, lease := range response.Leases {
			epochs[lease.Holder.Name] = lease.Epoch
		}
		return epochs
	}
	for _, c := range []struct {
		lose  int
		epoch int64
		want  map[string]int64
	}{
		{lose: -1, epoch: 11, want: map[string]int64{names[0]: 10, names[1]: 11}},
		{lose: 1, epoch: 10, want: map[string]int64{names[0]: 10}},
		{lose: 0, epoch: 0, want: map[string]int64{}},
	} {
		if c.lose >= 0 {
			f.lose(c.lose, "there:7601")
		}
		if diff := cmp.Diff(c.want, list(c.epoch)); diff != "" {
			t.Errorf("after the loss of %d (-want +got):\n%s", c.lose, diff)
		}
		f.expectCounts(map[string]int64{"sessions": int64(len(c.want))})
	}
}

func TestWatchLeases_LostShardDeletesItsSessions(t *testing.T) {
	f := newShardFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	names := f.names()
	f.beat(1, holders(names[0], names[1])...)
	watch, err := f.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{Parent: "namespaces/kube-node-lease"})
	if err != nil {
		t.Fatal(err)
	}
	receive := func() *leasev1.WatchLeasesResponse {
		t.Helper()
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return event
	}
	var existing []string
	for event := receive(); event.Type != leasev1.WatchLeasesResponse_TYPE_BOOKMARK; event = receive() {
		existing = append(existing, event.Lease.Holder.Name)
	}
	slices.Sort(existing)
	if want := slices.Sorted(slices.Values(names[:2])); !slices.Equal(existing, want) {
		t.Errorf("existing %v, want %v", existing, want)
	}
	f.lose(1, "there:7601")
	want := &leasev1.WatchLeasesResponse{
		Type: leasev1.WatchLeasesResponse_TYPE_DELETED,
		Lease: &leasev1.Lease{
			Name: leaseName(names[1]), Holder: holder(names[1], "1"), Epoch: 11, Shard: 1,
			Write: &leasev1.Lease_Write{State: leasev1.Lease_Write_STATE_PENDING, Reason: "first"},
		},
	}
	if diff := cmp.Diff(want, receive(), protocmp.Transform(), protocmp.IgnoreFields(&leasev1.WatchLeasesResponse{}, "freshness", "version")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f.leadership.hold(1, 12)
	f.awaitShard(1, "LEASE_NOT_FOUND")
	f.beat(1, holder(names[1], "1"))
	if got := receive(); got.Type != leasev1.WatchLeasesResponse_TYPE_ADDED || got.Lease.Epoch != 12 || got.Freshness.Epoch != 12 {
		t.Errorf("got %v, want %s added at epoch 12", got, names[1])
	}
	f.lose(0, "")
	f.lose(1, "")
	for _, name := range names[:2] {
		if got := receive(); got.Type != leasev1.WatchLeasesResponse_TYPE_DELETED || got.Lease.Holder.Name != name {
			t.Errorf("got %v, want %s deleted", got, name)
		}
	}
}

func TestWatchLeases_WorksWithoutAnyShard(t *testing.T) {
	f := newShardFixture(t, setup{})
	f.lose(0, "")
	f.lose(1, "")
	watch, err := f.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	event, err := watch.Recv()
	if err != nil || event.Type != leasev1.WatchLeasesResponse_TYPE_BOOKMARK || event.Freshness.Epoch != 0 {
		t.Errorf("got %v, error %v; want a bookmark at epoch 0", event, err)
	}
}

// After a shard has moved away and back, its handles are invalid, and one directive says so.
func TestStreamHeartbeats_LostSessionsCauseAResync(t *testing.T) {
	f := newShardFixture(t, setup{})
	s := f.open()
	var registering []*leasev1.Holder
	var handles []uint32
	for i := range 10 {
		registering = append(registering, holder(f.nameIn(1, fmt.Sprint("rack-", i)), "1"))
		handles = append(handles, uint32(i+1))
	}
	exchange(t, s, register(1, registering...))
	f.lose(1, "")
	f.leadership.hold(1, 12)
	f.awaitShard(1, "LEASE_NOT_FOUND")
	want := &leasev1.StreamHeartbeatsResponse{Sequence: 2, Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC}
	expectResponse(t, want, exchange(t, s, beats(2, handles...)))
	for _, w := range exchange(t, s, register(3, registering...)).Welcomes {
		if w.GetGrant().GetEpoch() != 12 || w.Handle <= 10 {
			t.Errorf("registered again: %v, want another handle at epoch 12", w)
		}
	}
}
