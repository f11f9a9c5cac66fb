package leasesvc_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func movedTo(address string) *leasev1.Rejection {
	if address == "" {
		return rejection("NO_LEADER")
	}
	why := rejection("NOT_LEADER")
	why.RedirectAddress = address
	return why
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
	t.Parallel()
	f := newShardFixture(t, setup{})
	rejectedBeat := func(why *leasev1.Rejection) *leasev1.HeartbeatResult {
		return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Rejection{Rejection: why}}
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
	t.Parallel()
	f := newShardFixture(t, setup{})
	s := f.open()
	registered := func(handle uint32, epoch int64) *leasev1.RegistrationResult {
		return &leasev1.RegistrationResult{Handle: handle, Result: &leasev1.RegistrationResult_Grant{Grant: at(epoch)}}
	}
	rejected := func(why *leasev1.Rejection) *leasev1.RegistrationResult {
		return &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{Rejection: why}}
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence:            1,
		RegistrationResults: []*leasev1.RegistrationResult{registered(1, 10), registered(2, 11), rejected(movedTo("there:7601")), rejected(movedTo(""))},
	}, exchange(t, s, register(1, holders(f.names()...)...)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Sequence: 2, Grant: at(11)}, exchange(t, s, beats(2, 1, 2)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Sequence: 3, Grant: at(10)}, exchange(t, s, beats(3, 1)))

	f.lose(1, "there:7601")
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 4, Grant: at(10), RejectedHandles: []*leasev1.RejectedHandle{{Handle: 2, Rejection: movedTo("there:7601")}},
	}, exchange(t, s, beats(4, 1, 2)))

	f.leadership.hold(1, 12)
	f.awaitShard(1, "LEASE_NOT_FOUND")
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 5, RejectedHandles: []*leasev1.RejectedHandle{rejectedHandle(2, "LEASE_NOT_FOUND")},
	}, exchange(t, s, beats(5, 2)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 6, RegistrationResults: []*leasev1.RegistrationResult{registered(3, 12)},
	}, exchange(t, s, register(6, holder(f.names()[1], "1"))))
	f.expectCounts(map[string]int64{"leases": 2, "alive": 2, "streams": 1})
	counted := f.sample()
	if notLeader, noLeader := counted["trivet_lease_heartbeats_total not_leader"], counted["trivet_lease_heartbeats_total no_leader"]; notLeader != 2 || noLeader != 1 {
		t.Errorf("%v heartbeats counted as not_leader and %v as no_leader, want 2 and 1", notLeader, noLeader)
	}
}

func TestStreamHeartbeats_EndsWithTheLastShardAndNotBefore(t *testing.T) {
	t.Parallel()
	f := newShardFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder(f.names()[0], "1")))
	f.lose(0, "there:7601")
	// The client closes a stream whose holders have all moved.
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, RejectedHandles: []*leasev1.RejectedHandle{{Handle: 1, Rejection: movedTo("there:7601")}},
	}, exchange(t, s, beats(2, 1)))
	f.lose(1, "there:7601")
	response, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE, RedirectAddress: "there:7601",
	}, response)
	expectError(t, "after it", streamError(t, s), codes.FailedPrecondition, "NOT_LEADER")
	err = exchangeError(t, f.open(), register(1, holder("n1", "1")))
	expectError(t, "a new stream", err, codes.FailedPrecondition, "NOT_LEADER")
	if got := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey); got != "there:7601" {
		t.Errorf("redirect_address %q, want there:7601", got)
	}
}

func TestLeaseRPCs_NameTheLeaderOfTheShard(t *testing.T) {
	t.Parallel()
	f := newShardFixture(t, setup{})
	for number, want := range map[int]struct {
		address, reason string
		code            codes.Code
	}{
		2: {address: "there:7601", code: codes.FailedPrecondition, reason: "NOT_LEADER"},
		3: {code: codes.Unavailable, reason: "NO_LEADER"},
	} {
		name := f.names()[number]
		_, get := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
		_, release := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(name, "1")})
		for what, err := range map[string]error{"get": get, "release": release} {
			expectError(t, what, err, want.code, want.reason)
			if got := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey); got != want.address {
				t.Errorf("%s in shard %d: redirect address %q, want %q", what, number, got, want.address)
			}
		}
	}
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(f.names()[0], "1")}); err != nil {
		t.Errorf("release an absent holder in a held shard: %v", err)
	}
}

func TestListLeases_ReturnsTheHeldShards(t *testing.T) {
	t.Parallel()
	f := newShardFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	names := f.names()
	f.beat(1, holders(names...)...)
	list := func(epoch int64, shards ...int32) (epochs map[string]int64) {
		t.Helper()
		response, err := f.leases.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expectSource(t, response.Sources, epoch, shards...)
		epochs = map[string]int64{}
		for _, lease := range response.Leases {
			epochs[lease.Holder.Name] = lease.Owner.GetEpoch()
		}
		return epochs
	}
	for _, c := range []struct {
		lose   int
		epoch  int64
		shards []int32
		want   map[string]int64
	}{
		{lose: -1, epoch: 11, shards: []int32{0, 1}, want: map[string]int64{names[0]: 10, names[1]: 11}},
		{lose: 1, epoch: 10, shards: []int32{0}, want: map[string]int64{names[0]: 10}},
		{lose: 0, epoch: 0, want: map[string]int64{}},
	} {
		if c.lose >= 0 {
			f.lose(c.lose, "there:7601")
		}
		if diff := cmp.Diff(c.want, list(c.epoch, c.shards...)); diff != "" {
			t.Errorf("after the loss of %d (-want +got):\n%s", c.lose, diff)
		}
		f.expectCounts(map[string]int64{"leases": int64(len(c.want))})
	}
}

func TestWatchLeases_WorksWithoutAnyShard(t *testing.T) {
	t.Parallel()
	f := newShardFixture(t, setup{})
	f.lose(0, "")
	f.lose(1, "")
	watch := f.watchLeases(&leasev1.WatchLeasesRequest{})
	expectSource(t, expectLeaseEvents(t, watch, "BOOKMARK [] initial").Bookmark.Sources, 0)
}

// After a shard has moved away and back, its handles are invalid, and one directive says so.
func TestStreamHeartbeats_LostSessionsCauseAResync(t *testing.T) {
	t.Parallel()
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
	for _, w := range exchange(t, s, register(3, registering...)).RegistrationResults {
		if w.GetGrant().GetEpoch() != 12 || w.Handle <= 10 {
			t.Errorf("registered again: %v, want another handle at epoch 12", w)
		}
	}
}
