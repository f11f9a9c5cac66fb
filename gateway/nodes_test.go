package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway/internal/api"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	ready   = nodev1.NodeHealth_HEALTH_READY
	silent  = nodev1.NodeHealth_HEALTH_SILENT
	unknown = nodev1.NodeHealth_HEALTH_UNKNOWN
)

// clientOfLeasesvc is a client of the services that leasesvc and the gateway have.
type clientOfLeasesvc struct {
	leasev1.LeaseServiceClient
	nodev1.NodeHealthServiceClient
}

func newClientOfLeasesvc(conn grpc.ClientConnInterface) clientOfLeasesvc {
	return clientOfLeasesvc{LeaseServiceClient: leasev1.NewLeaseServiceClient(conn), NodeHealthServiceClient: nodev1.NewNodeHealthServiceClient(conn)}
}

// nodeClient runs a gateway over the members and returns a client of it.
func nodeClient(t *testing.T, members *directory) clientOfLeasesvc {
	t.Helper()
	service := startGateway(t, members, longTimeout)
	return newClientOfLeasesvc(testkit.Serve(t, service.Register))
}

// newLeasesvcWithNodes returns a fake with ready nodes n00 to n(count-1).
func newLeasesvcWithNodes(count int, leaders ...string) *fakeLeasesvc {
	k := newLeasesvc(leaders...)
	for i := range count {
		k.put(fmt.Sprintf("n%02d", i), "z:a", ready)
	}
	return k
}

func TestGetNodeHealth_LeaderIsFoundAndRemembered(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(8, "l1", "l2", "l3")
	one, m1 := k.start(t, "l1")
	two, m2 := k.start(t, "l2")
	three, m3 := k.start(t, "l3")
	client := nodeClient(t, newDirectory(m1, m2, m3))
	calls := func() int64 { return one.calls.Load() + two.calls.Load() + three.calls.Load() }

	for i := range 8 {
		name := fmt.Sprintf("nodes/n%02d", i)
		answer, err := client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: name})
		if err != nil {
			t.Fatalf("GetNodeHealth(%s) = %v", name, err)
		}
		if leader := k.leaders[k.shardOf(name)]; answer.Node.Name != name || answer.Sources[0].ReplicaId != leader {
			t.Errorf("%s comes from %s as %s, want its leader %s", name, answer.Sources[0].ReplicaId, answer.Node.Name, leader)
		}
	}
	if asked := calls(); asked > 16 {
		t.Errorf("8 questions took %d calls, want at most one redirect each", asked)
	}
	before := calls()
	for i := range 8 {
		if _, err := client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: fmt.Sprintf("nodes/n%02d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if asked := calls() - before; asked != 8 {
		t.Errorf("8 questions with known leaders took %d calls", asked)
	}
}

func TestGetNodeHealth_FollowsAShardThatMoved(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(1, "l1")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	client := nodeClient(t, newDirectory(m1, m2))
	for _, leader := range []string{"l1", "l2", "l1"} {
		k.move(0, leader)
		answer, err := client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/n00"})
		if err != nil || answer.Sources[0].ReplicaId != leader {
			t.Errorf("answer from %v, %v; want from %s", answer.GetSources(), err, leader)
		}
	}
}

func TestNodeReads_AnswersPassUnchanged(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(1, "l1")
	k.put("n01", "z:a", silent)
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	client := nodeClient(t, newDirectory(m2, m1))

	_, err := client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/none"})
	checkReason(t, err, codes.NotFound, "NODE_NOT_FOUND")
	_, err = client.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/none"})
	checkReason(t, err, codes.NotFound, "LEASE_NOT_FOUND")
	_, err = client.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: "leases/n00"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)

	lease, err := client.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/n00"})
	if err != nil || lease.Lease.State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("GetLease() = %v, %v; want a lease that is alive", lease, err)
	}
	zones, err := client.ListZones(t.Context(), &nodev1.ListZonesRequest{})
	if err != nil || len(zones.Zones) != 1 || zones.Zones[0].NodeCount != 2 {
		t.Errorf("ListZones() = %v, %v; want one zone of 2 nodes", zones, err)
	}
	chain, err := client.ExplainNodeHealth(t.Context(), &nodev1.ExplainNodeHealthRequest{Name: "nodes/n01"})
	if err != nil || chain.GetBrokenIndex() != 1 || chain.Evidence[chain.GetBrokenIndex()].Code != "LAST_BEAT" || chain.Node.Name != "nodes/n01" {
		t.Errorf("ExplainNodeHealth() = %v, %v; want a chain broken at LAST_BEAT", chain, err)
	}
}

func TestNodeReads_LeaderCannotBeReached(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(1, "l1")
	_, m2 := k.start(t, "l2")
	gone := dead(t, "leasesvc", "l1")
	k.change(func() { k.members["l1"] = gone })
	get := func(members *directory) error {
		_, err := nodeClient(t, members).GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/n00"})
		return err
	}

	t.Run("it is dead", func(t *testing.T) {
		checkNoSource(t, get(newDirectory(gone, m2)), "the replica that owns the answer cannot be reached: leasesvc l1", "refused")
	})
	t.Run("no replica is registered", func(t *testing.T) { checkNoSource(t, get(newDirectory()), "no replica of leasesvc is registered") })
	t.Run("only other services are registered", func(t *testing.T) {
		_, s1 := newSlicesvc("s1").start(t, "s1")
		checkNoSource(t, get(newDirectory(s1)), "no replica of leasesvc is registered in etcd; registered are slicesvc (1)")
	})
	t.Run("the leader is not registered", func(t *testing.T) {
		// Only the addresses of registered replicas are called.
		checkReason(t, get(newDirectory(m2)), codes.FailedPrecondition, rpcerror.NotLeaderReason)
	})
}

func TestNodeReads_LoopDisabledOnlyIfItIsOffEverywhere(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(1, "l2")
	one, m1 := k.start(t, "l1")
	two, m2 := k.start(t, "l2")
	one.disabled.Store(true)
	client := nodeClient(t, newDirectory(m1, m2))

	if _, err := client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/n00"}); err != nil {
		t.Errorf("GetNodeHealth() = %v although the leader runs the loop", err)
	}
	list, err := client.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{})
	if err != nil || len(list.Nodes) != 1 || len(list.Missing) != 1 || list.Missing[0].Code != code.Code_FAILED_PRECONDITION {
		t.Errorf("ListNodeHealth() = %v, %v; want one node, and l1 missing", list, err)
	}

	two.disabled.Store(true)
	_, err = client.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/n00"})
	checkReason(t, err, codes.FailedPrecondition, "LOOP_DISABLED")
	_, err = client.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{})
	checkReason(t, err, codes.FailedPrecondition, "LOOP_DISABLED")
	stream, err := client.WatchNodeHealth(t.Context(), &nodev1.WatchNodeHealthRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	checkReason(t, err, codes.FailedPrecondition, "LOOP_DISABLED")
}

// names returns the names on all pages of a list of Nodes.
func names(t *testing.T, client clientOfLeasesvc, request *nodev1.ListNodeHealthRequest, between func()) []string {
	t.Helper()
	var all []string
	for {
		page, err := client.ListNodeHealth(t.Context(), request)
		if err != nil {
			t.Fatalf("ListNodeHealth(%v) = %v", request, err)
		}
		if request.PageSize > 0 && len(page.Nodes) > int(request.PageSize) {
			t.Errorf("a page of %d has %d nodes", request.PageSize, len(page.Nodes))
		}
		for _, node := range page.Nodes {
			all = append(all, strings.TrimPrefix(node.Name, "nodes/"))
		}
		if page.NextPageToken == "" {
			return all
		}
		request.PageToken = page.NextPageToken
		between()
	}
}

func TestListNodeHealth_PagesOfAllReplicasAreOneList(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(40, "l1", "l2", "l3", "l1", "l2")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	_, m3 := k.start(t, "l3")
	members := newDirectory(m1, m2, m3)
	client := nodeClient(t, members)
	var want []string
	for i := range 40 {
		want = append(want, fmt.Sprintf("n%02d", i))
	}
	for _, size := range []int32{0, 1, 2, 7, 100} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			got := names(t, client, &nodev1.ListNodeHealthRequest{PageSize: size, Zones: []string{"zones/z:a"}}, func() {})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("while shards move and a replica leaves", func(t *testing.T) {
		moves := 0
		got := names(t, client, &nodev1.ListNodeHealthRequest{PageSize: 4}, func() {
			k.move(moves%5, []string{"l1", "l2"}[moves%2])
			if moves++; moves == 7 {
				k.move(2, "l1")
				members.set(m1, m2)
			}
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	})
}

func TestLists_TokenOfAnotherListIsRefused(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(9, "l1", "l2")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	client := nodeClient(t, newDirectory(m1, m2))
	for _, size := range []int32{1, 4} { // both kinds of tokens
		page, err := client.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{PageSize: size})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{PageToken: page.NextPageToken, Zones: []string{"zones/z:b"}})
		checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
		_, err = client.ListLeases(t.Context(), &leasev1.ListLeasesRequest{PageToken: page.NextPageToken})
		checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
	}
}

func TestLists_NameMissingReplicas(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(12, "l1", "l2")
	_, m1 := k.start(t, "l1")
	two, m2 := k.start(t, "l2")
	two.unavailable.Store(true)
	members := newDirectory(m1, m2, dead(t, "leasesvc", "l3"))
	client := nodeClient(t, members)

	list, err := client.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})

	if err != nil {
		t.Fatalf("ListLeases() = %v", err)
	}
	if diff := cmp.Diff([]string{"l2 UNAVAILABLE [1]", "l3 UNAVAILABLE []"}, missingOf(list.Missing)); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if len(list.Leases) == 0 || len(list.Leases) == 12 {
		t.Errorf("%d leases, want those of l1", len(list.Leases))
	}

	members.set(m2)
	_, err = client.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})
	checkReason(t, err, codes.Unavailable, api.ReplicasUnreachableReason)
}

// watchedNodes is a client of WatchNodeHealth that keeps the Nodes.
type watchedNodes struct {
	stream  grpc.ServerStreamingClient[nodev1.WatchNodeHealthResponse]
	health  map[string]nodev1.NodeHealth_Health
	events  []string
	missing []string
}

func watchNodes(t *testing.T, client clientOfLeasesvc, zones ...string) *watchedNodes {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	stream, err := client.WatchNodeHealth(ctx, &nodev1.WatchNodeHealthRequest{Zones: zones})
	if err != nil {
		t.Fatalf("WatchNodeHealth() = %v", err)
	}
	return &watchedNodes{stream: stream, health: map[string]nodev1.NodeHealth_Health{}}
}

// next receives one event. A contradiction fails the test.
func (v *watchedNodes) next(t *testing.T) metav1.EventType {
	t.Helper()
	event, err := v.stream.Recv()
	if err != nil {
		t.Fatalf("the watch ended with %v; seen %v", err, v.events)
	}
	name := strings.TrimPrefix(event.Node.GetName(), "nodes/")
	_, known := v.health[name]
	switch event.Type {
	case bookmark:
		v.missing = missingOf(event.Bookmark.Missing)
		return event.Type
	case deleted:
		delete(v.health, name)
	default:
		v.health[name] = event.Node.Health
	}
	if known == (event.Type == added) {
		t.Fatalf("%s for %s, known: %v", event.Type, name, known)
	}
	v.events = append(v.events, fmt.Sprintf("%s %s", strings.TrimPrefix(event.Type.String(), "EVENT_TYPE_"), name))
	return event.Type
}

// until receives events until a condition holds.
func (v *watchedNodes) until(t *testing.T, condition func() bool) {
	t.Helper()
	for !condition() {
		v.next(t)
	}
}

func (v *watchedNodes) bookmark(t *testing.T) {
	t.Helper()
	for {
		if v.next(t) == bookmark {
			return
		}
	}
}

func TestWatchNodeHealth_OneStreamForAllReplicas(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(20, "l1", "l2", "l3")
	k.put("n99", "z:b", silent)
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	_, m3 := k.start(t, "l3")
	client := nodeClient(t, newDirectory(m1, m2, m3))
	all, other := watchNodes(t, client), watchNodes(t, client, "zones/z:b")

	all.bookmark(t)
	other.bookmark(t)
	if len(all.health) != 21 || len(other.health) != 1 || all.health["n99"] != silent {
		t.Fatalf("%d and %d nodes at the bookmarks, want 21 and 1", len(all.health), len(other.health))
	}
	k.put("n99", "z:b", unknown)
	k.put("n05", "z:b", ready) // changes its zone
	all.until(t, func() bool { return all.health["n99"] == unknown })
	other.until(t, func() bool { return other.health["n99"] == unknown && other.health["n05"] == ready })
}

func TestWatchNodeHealth_MoveIsAModification(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(6, "l1", "l2")
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	v := watchNodes(t, nodeClient(t, newDirectory(m1, m2)))
	v.bookmark(t)
	v.events = nil

	k.move(0, "l2")
	k.put("n03", "z:a", silent)

	v.until(t, func() bool { return v.health["n03"] == silent })
	k.remove("n03")
	v.until(t, func() bool { return len(v.health) == 5 })
	for _, event := range v.events {
		if !strings.HasPrefix(event, "MODIFIED") && event != "DELETED n03" {
			t.Errorf("a move is reported as %q", event)
		}
	}
}

func TestWatchNodeHealth_FailedReplicaIsMissingUntilItReports(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(10, "l1", "l2")
	_, m1 := k.start(t, "l1")
	two, m2 := k.start(t, "l2")
	v := watchNodes(t, nodeClient(t, newDirectory(m1, m2)))
	v.bookmark(t)

	two.unavailable.Store(true)
	k.put("n00", "z:a", ready)
	v.until(t, func() bool { return slices.Equal(v.missing, []string{"l2 UNAVAILABLE [1]"}) })
	if len(v.health) != 10 {
		t.Errorf("%d nodes are left after one replica failed, want all 10", len(v.health))
	}
	v.events = nil
	two.unavailable.Store(false)
	v.until(t, func() bool { return len(v.missing) == 0 })
	if len(v.events) > 0 {
		t.Errorf("a repeated report without changes has the events %v", v.events)
	}
}

func TestWatchNodeHealth_NoReplicaAnswers(t *testing.T) {
	t.Parallel()
	v := watchNodes(t, nodeClient(t, newDirectory(dead(t, "leasesvc", "l1"))))

	_, err := v.stream.Recv()

	checkNoSource(t, err, "leasesvc l1")
}

func TestWatchNodeHealth_ManyClientsShareTheStreams(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(5, "l1")
	one, m1 := k.start(t, "l1")
	client := nodeClient(t, newDirectory(m1))
	for range 20 {
		watchNodes(t, client).bookmark(t)
	}
	if streams := one.watches.Load(); streams != 1 {
		t.Errorf("%d streams for 20 clients, want 1", streams)
	}
}

func TestWatchLeases_StartsAgainIfItCannotResume(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(4, "l1")
	one, m1 := k.start(t, "l1")
	client := nodeClient(t, newDirectory(m1))
	stream, err := client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{Parent: "namespaces/kube-node-lease"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	read := func(enough func(*leasev1.WatchLeasesResponse) bool) {
		t.Helper()
		for {
			event, err := stream.Recv()
			if err != nil {
				t.Fatalf("the watch ended with %v", err)
			}
			if event.Lease != nil {
				seen[event.Lease.Name] = true
			}
			if enough(event) {
				return
			}
		}
	}
	whole := func(event *leasev1.WatchLeasesResponse) bool {
		return event.Type == bookmark && len(event.Bookmark.GetMissing()) == 0
	}
	read(whole)

	one.unavailable.Store(true)
	k.put("n07", "z:a", ready)
	read(func(event *leasev1.WatchLeasesResponse) bool { return len(event.Bookmark.GetMissing()) == 1 })
	one.unavailable.Store(false)
	read(whole)

	if len(seen) != 5 || one.resumed.Load() == 0 {
		t.Errorf("%d leases seen, %d attempts to resume; want 5 leases and at least one attempt", len(seen), one.resumed.Load())
	}
}

func TestRun_StopEndsWatchesOfNodes(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(1, "l1")
	_, m1 := k.start(t, "l1")
	service := newGateway(t, newDirectory(m1), longTimeout)
	stop := run(t, service)
	v := watchNodes(t, newClientOfLeasesvc(testkit.Serve(t, service.Register)))
	v.bookmark(t)

	stop()

	for {
		_, err := v.stream.Recv()
		if err == nil {
			continue
		}
		if rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason || errors.Is(err, io.EOF) {
			t.Errorf("the watch ended with %v, want reason %s", err, rpcerror.ShuttingDownReason)
		}
		return
	}
}
