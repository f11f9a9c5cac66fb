package gateway_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestListShards_OfAllServices(t *testing.T) {
	t.Parallel()
	k, p := newLeasesvc("l1", "l2", "", "l1"), newSlicesvc("s1")
	_, l1 := k.start(t, "l1")
	_, l2 := k.start(t, "l2")
	_, s1 := p.start(t, "s1")
	members := newDirectory(dead(t, "bootstrapsvc", "b1"), l1, l2, s1)
	service := startGateway(t, members, longTimeout)
	for _, size := range []int32{0, 1, 3} {
		var got []string
		request := &statusv1.ListShardsRequest{PageSize: size}
		for {
			page, err := service.ListShards(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			for _, shard := range page.Shards {
				got = append(got, fmt.Sprintf("%s %d %s", shard.Service, shard.GetShard(), shard.LeaderId))
			}
			if diff := cmp.Diff([]string{"b1 UNAVAILABLE []"}, missingOf(page.Missing)); diff != "" || len(page.Sources) != 3 {
				t.Errorf("sources %v, missing (-want +got):\n%s", page.Sources, diff)
			}
			if request.PageToken = page.NextPageToken; request.PageToken == "" {
				break
			}
		}
		want := []string{"leasesvc 0 l1", "leasesvc 1 l2", "leasesvc 2 ", "leasesvc 3 l1", "slicesvc 0 s1"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("by %d (-want +got):\n%s", size, diff)
		}
	}
	_, err := service.ListShards(t.Context(), &statusv1.ListShardsRequest{Services: []string{"bootstrapsvc"}})
	checkNoSource(t, err, "bootstrapsvc b1", "refused")
	_, err = service.ListShards(t.Context(), &statusv1.ListShardsRequest{PageToken: "noise"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
}

// A short list must not look complete, although each registered replica answered.
func TestLists_NameShardsWithoutALeader(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(12, "l1", "", "l2", "")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	client := nodeClient(t, newDirectory(m1, m2))
	leases, err := client.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})
	if diff := cmp.Diff([]string{" UNAVAILABLE [1 3]"}, missingOf(leases.GetMissing())); diff != "" || err != nil {
		t.Errorf("ListLeases() = %v, missing (-want +got):\n%s", err, diff)
	}
	v := watchNodes(t, client)
	v.bookmark(t)
	if diff := cmp.Diff([]string{" UNAVAILABLE [1 3]"}, v.missing); diff != "" {
		t.Errorf("missing at the bookmark (-want +got):\n%s", diff)
	}
	known := len(v.health)
	k.move(1, "l1")
	k.move(3, "l2")
	v.until(t, func() bool { return len(v.missing) == 0 })
	if len(v.health) != 12 || known == 12 {
		t.Errorf("%d nodes with all shards and %d without two, want 12 and less", len(v.health), known)
	}
}

// The process at an address may be another one than the replica that was asked.
func TestReads_AnswerOfAnotherReplicaDoesNotCount(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(8, "l1", "l2")
	_, m1 := k.start(t, "l1")
	two, m2 := k.start(t, "l2")
	two.impostor.Store(true)
	client := nodeClient(t, newDirectory(m1, m2))

	list, err := client.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{})
	if diff := cmp.Diff([]string{"l2 UNAVAILABLE [1]"}, missingOf(list.GetMissing())); diff != "" || err != nil {
		t.Errorf("ListNodeHealth() = %v, missing (-want +got):\n%s", err, diff)
	}
	v := watchNodes(t, client)
	v.bookmark(t)
	if diff := cmp.Diff([]string{"l2 UNAVAILABLE [1]"}, v.missing); diff != "" {
		t.Errorf("missing at the bookmark (-want +got):\n%s", diff)
	}
	for name := range k.nodes {
		if k.shardOf(name) == 1 {
			_, err := client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: name})
			checkNoSource(t, err, "l2", `answered as leasesvc "another"`)
			break
		}
	}
}

// A list and a watch with its token together miss nothing and repeat nothing.
func TestListNodeHealth_WatchGoesOnAfterIt(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(6, "l1", "l2")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	client := nodeClient(t, newDirectory(m1, m2))
	watchNodes(t, client).bookmark(t)
	list, err := client.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{Zones: []string{"zones/z:a"}})
	if err != nil || list.ResumeToken == "" {
		t.Fatalf("ListNodeHealth() = %v, %v; want a token", list, err)
	}
	k.put("n03", "z:a", silent)
	k.put("n04", "z:b", silent) // leaves the filter

	stream, err := client.WatchNodeHealth(t.Context(), &nodev1.WatchNodeHealthRequest{Zones: []string{"zones/z:a"}, ResumeToken: list.ResumeToken})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for deadline := time.Now().Add(20 * time.Second); len(got) < 2 && time.Now().Before(deadline); {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.Node != nil {
			got[event.Node.Name] = event.Type.String()
		}
	}
	if len(got) != 2 || got["nodes/n04"] != deleted.String() || got["nodes/n03"] == "" {
		t.Errorf("events %v, want n03 and the deletion of n04 only", got)
	}
	_, err = recvNode(client.WatchNodeHealth(t.Context(), &nodev1.WatchNodeHealthRequest{ResumeToken: list.ResumeToken}))
	checkReason(t, err, codes.OutOfRange, rpcerror.ResumeTokenExpiredReason) // the arguments differ
}

func recvNode(stream nodev1.NodeHealthService_WatchNodeHealthClient, err error) (*nodev1.WatchNodeHealthResponse, error) {
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

func TestWatchZones_FollowsTheLeader(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(4, "l1", "l2")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	stream, err := nodeClient(t, newDirectory(m1, m2)).WatchZones(t.Context(), &nodev1.WatchZonesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	until := func(nodes int32, leader string) {
		t.Helper()
		for {
			event, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if event.Type == deleted {
				t.Errorf("%v although the zone exists", event)
			}
			if event.Zone.GetNodeCount() == nodes && event.Zone.Owner.ReplicaId == leader {
				return
			}
		}
	}
	until(4, "l1")
	k.move(0, "l2")
	k.put("n77", "z:a", ready)
	until(5, "l2")
}
