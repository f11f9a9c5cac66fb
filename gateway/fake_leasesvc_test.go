package gateway_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// fakeLeasesvc is leasesvc with Nodes and Leases. Its replicas keep the contract of the API: which
// one answers, what a page token continues, and what a watch reports when a shard moves.
type fakeLeasesvc struct {
	*fakeService
	nodes  map[string]*leasev1.NodeHealth
	leases map[string]*leasev1.Lease
}

func newLeasesvc(holders ...string) *fakeLeasesvc {
	return &fakeLeasesvc{
		fakeService: newFakeService("leasesvc", holders...), nodes: map[string]*leasev1.NodeHealth{}, leases: map[string]*leasev1.Lease{},
	}
}

func (f *fakeLeasesvc) shardOf(resource string) int {
	return shard.Of("node", resource[strings.LastIndex(resource, "/")+1:], len(f.holders))
}

// put sets the health of a Node and makes its Lease alive.
func (f *fakeLeasesvc) put(name, zone string, health leasev1.NodeHealth_Health) {
	f.change(func() {
		f.nodes["nodes/"+name] = &leasev1.NodeHealth{Name: "nodes/" + name, Zone: zone, Health: health, Reason: "set by the test"}
		lease := "namespaces/kube-node-lease/leases/" + name
		f.leases[lease] = &leasev1.Lease{Name: lease, State: leasev1.Lease_STATE_ALIVE}
	})
}

func (f *fakeLeasesvc) remove(name string) {
	f.change(func() {
		delete(f.nodes, "nodes/"+name)
		delete(f.leases, "namespaces/kube-node-lease/leases/"+name)
	})
}

// leaseReplica is one replica.
type leaseReplica struct {
	leasev1.UnimplementedLeaseServiceServer
	leasev1.UnimplementedNodeHealthServiceServer

	service *fakeLeasesvc
	id      string
	// disabled is whether its loop node-health is off; unavailable is whether all calls fail.
	disabled, unavailable atomic.Bool
	calls, watches        atomic.Int64
	// copies counts copies of items. As in leasesvc, each copy has a slightly different time.
	copies  atomic.Int64
	resumed atomic.Int64
}

// start starts a replica.
func (f *fakeLeasesvc) start(t testing.TB, id string) (*leaseReplica, term.Member) {
	t.Helper()
	r := &leaseReplica{service: f, id: id}
	return r, f.fakeService.start(t, id, func(registrar grpc.ServiceRegistrar) {
		leasev1.RegisterLeaseServiceServer(registrar, r)
		leasev1.RegisterNodeHealthServiceServer(registrar, r)
	})
}

func (r *leaseReplica) admit(nodes bool) error {
	r.calls.Add(1)
	switch {
	case r.unavailable.Load():
		return rpcerror.New(codes.Unavailable, "CACHE_NOT_SYNCED", "the Nodes are still being listed")
	case nodes && r.disabled.Load():
		return rpcerror.New(codes.FailedPrecondition, "LOOP_DISABLED", "the loop node-health is off; start leasesvc with --loops=*,node-health")
	}
	return nil
}

func (r *leaseReplica) freshness() *statusv1.Freshness {
	return &statusv1.Freshness{ReplicaId: r.id, ReadTime: timestamppb.Now()}
}

// resource is a pointer to a message that replicas report.
type resource interface {
	comparable
	proto.Message
	GetName() string
	GetEpoch() int64
}

// cache has the copies of a replica, so that a large cluster is not copied at each change.
type cache[T resource] map[string]struct{ from, copy T }

// ownItems returns copies of the items of the replica's shards with their shards and epochs. The
// cache belongs to the caller.
func ownItems[T resource](r *leaseReplica, all map[string]T, copies cache[T], complete func(item T, shard int32, epoch int64)) map[string]T {
	f := r.service
	f.mu.Lock()
	defer f.mu.Unlock()
	own := make(map[string]T, len(copies))
	for name, item := range all {
		number := f.shardOf(name)
		if f.holders[number] != r.id {
			continue
		}
		last, known := copies[name]
		if !known || last.from != item || last.copy.GetEpoch() != f.epochs[number] {
			last.from, last.copy = item, proto.CloneOf(item)
			complete(last.copy, int32(number), f.epochs[number])
			copies[name] = last
		}
		own[name] = last.copy
	}
	return own
}

func (r *leaseReplica) nodesBy(copies cache[*leasev1.NodeHealth]) map[string]*leasev1.NodeHealth {
	return ownItems(r, r.service.nodes, copies, func(n *leasev1.NodeHealth, shard int32, epoch int64) {
		n.Shard, n.Epoch, n.ChangeTime = shard, epoch, r.approximateTime()
	})
}

func (r *leaseReplica) leasesBy(copies cache[*leasev1.Lease]) map[string]*leasev1.Lease {
	return ownItems(r, r.service.leases, copies, func(l *leasev1.Lease, shard int32, epoch int64) {
		l.Shard, l.Epoch, l.StartTime = shard, epoch, r.approximateTime()
	})
}

func (r *leaseReplica) approximateTime() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: int32(r.copies.Add(1) % int64(time.Second))}
}

func (r *leaseReplica) ownNodes() map[string]*leasev1.NodeHealth {
	return r.nodesBy(cache[*leasev1.NodeHealth]{})
}

func (r *leaseReplica) ownLeases() map[string]*leasev1.Lease {
	return r.leasesBy(cache[*leasev1.Lease]{})
}

func (r *leaseReplica) node(name string) (*leasev1.NodeHealth, error) {
	if err := r.admit(true); err != nil {
		return nil, err
	}
	if err := r.service.checkHolder(r.service.shardOf(name), r.id); err != nil {
		return nil, err
	}
	if node := r.ownNodes()[name]; node != nil {
		return node, nil
	}
	return nil, rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", name+" does not exist")
}

func (r *leaseReplica) GetNodeHealth(_ context.Context, request *leasev1.GetNodeHealthRequest) (*leasev1.GetNodeHealthResponse, error) {
	node, err := r.node(request.Name)
	if err != nil {
		return nil, err
	}
	return &leasev1.GetNodeHealthResponse{Node: node, Freshness: r.freshness()}, nil
}

func (r *leaseReplica) ExplainNodeHealth(_ context.Context, request *leasev1.ExplainNodeHealthRequest) (*leasev1.ExplainNodeHealthResponse, error) {
	node, err := r.node(request.Name)
	if err != nil {
		return nil, err
	}
	evidence, broken := chainOf(node, r.id)
	return &leasev1.ExplainNodeHealthResponse{Node: node, Evidence: evidence, FirstBroken: broken, Freshness: r.freshness()}, nil
}

// chainOf returns the evidence that leasesvc would report.
func chainOf(node *leasev1.NodeHealth, replica string) (evidence []*statusv1.Evidence, broken int32) {
	const good, bad, absent = statusv1.Evidence_VERDICT_GOOD, statusv1.Evidence_VERDICT_BROKEN, statusv1.Evidence_VERDICT_ABSENT
	link := func(code string, verdict statusv1.Evidence_Verdict, finding, next string) {
		evidence = append(evidence, &statusv1.Evidence{
			Code: code, Verdict: verdict, Finding: finding, Next: next, Source: "session", ReplicaId: replica,
			Version: fmt.Sprint(node.Epoch), ObserveTime: timestamppb.New(time.Now()),
		})
	}
	link("SESSION", absent, "no session: the kubelet writes its Lease itself", "")
	if node.Health < leasev1.NodeHealth_HEALTH_SUSPECT {
		link("LAST_BEAT", good, "last heard 2 s ago; a heartbeat is due every 5 s", "")
		link("DEADLINE", good, "in 18 s", "")
		return evidence, -1
	}
	link("LAST_BEAT", bad, "last heard 26 s ago; a heartbeat is due every 5 s", "look at the kubelet: journalctl -u kubelet")
	link("DEADLINE", bad, "passed 6 s ago", "")
	return evidence, 1
}

func (r *leaseReplica) ListZones(context.Context, *leasev1.ListZonesRequest) (*leasev1.ListZonesResponse, error) {
	if err := r.admit(true); err != nil {
		return nil, err
	}
	if err := r.service.checkHolder(0, r.id); err != nil {
		return nil, err
	}
	return &leasev1.ListZonesResponse{Zones: r.service.zones(), Freshness: r.freshness()}, nil
}

func (f *fakeLeasesvc) zones() []*leasev1.Zone {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*leasev1.Zone{}
	for _, node := range f.nodes {
		zone := byName[node.Zone]
		if zone == nil {
			zone = &leasev1.Zone{Name: node.Zone, State: leasev1.Zone_STATE_NORMAL, TaintRate: 0.1}
			byName[node.Zone] = zone
		}
		if zone.Nodes++; node.Health != leasev1.NodeHealth_HEALTH_READY {
			zone.NotReady++
		}
		if zone.NotReady*2 > zone.Nodes {
			zone.State = leasev1.Zone_STATE_PARTIAL_DISRUPTION
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *leasev1.Zone) int { return strings.Compare(a.Name, b.Name) })
}

func (r *leaseReplica) GetLease(_ context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	if err := r.admit(false); err != nil {
		return nil, err
	}
	if err := r.service.checkHolder(r.service.shardOf(request.Name), r.id); err != nil {
		return nil, err
	}
	if lease := r.ownLeases()[request.Name]; lease != nil {
		return &leasev1.GetLeaseResponse{Lease: lease, Freshness: r.freshness()}, nil
	}
	return nil, rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "no session or Lease "+request.Name)
}

// pageOf returns a page. A token has the arguments of the list and the last name.
func pageOf[T any](all map[string]T, arguments, token string, size int32, fits func(T) bool) (page []T, next string, err error) {
	last, valid := strings.CutPrefix(token, arguments+"|")
	if token != "" && !valid {
		return nil, "", rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, "page_token is from another list")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name <= last || !fits(all[name]) {
			continue
		}
		if len(page) == int(size) {
			return page, next, nil
		}
		page, next = append(page, all[name]), arguments+"|"+name
	}
	return page, "", nil
}

func (r *leaseReplica) ListNodeHealth(_ context.Context, request *leasev1.ListNodeHealthRequest) (*leasev1.ListNodeHealthResponse, error) {
	if err := r.admit(true); err != nil {
		return nil, err
	}
	arguments := fmt.Sprint(request.Health, request.Zone)
	page, next, err := pageOf(r.ownNodes(), arguments, request.PageToken, request.PageSize, func(node *leasev1.NodeHealth) bool {
		return (request.Health == 0 || node.Health == request.Health) && (request.Zone == "" || node.Zone == request.Zone)
	})
	return &leasev1.ListNodeHealthResponse{Nodes: page, NextPageToken: next}, err
}

func (r *leaseReplica) ListLeases(_ context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	if err := r.admit(false); err != nil {
		return nil, err
	}
	page, next, err := pageOf(r.ownLeases(), request.Parent, request.PageToken, request.PageSize, func(*leasev1.Lease) bool { return true })
	return &leasev1.ListLeasesResponse{Leases: page, NextPageToken: next}, err
}

func (r *leaseReplica) WatchNodeHealth(_ *leasev1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[leasev1.WatchNodeHealthResponse]) error {
	if err := r.admit(true); err != nil {
		return err
	}
	copies := cache[*leasev1.NodeHealth]{}
	read := func() map[string]*leasev1.NodeHealth { return r.nodesBy(copies) }
	return followItems(wire.Context(), r, read, func(kind int32, node *leasev1.NodeHealth) error {
		return wire.Send(&leasev1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_Type(kind), Node: node})
	})
}

func (r *leaseReplica) WatchLeases(request *leasev1.WatchLeasesRequest, wire grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	if err := r.admit(false); err != nil {
		return err
	}
	if request.StartVersion != "" {
		r.resumed.Add(1)
		return rpcerror.New(codes.OutOfRange, "VERSION_TOO_OLD", "the deletions since are not remembered")
	}
	copies := cache[*leasev1.Lease]{}
	read := func() map[string]*leasev1.Lease { return r.leasesBy(copies) }
	return followItems(wire.Context(), r, read, func(kind int32, lease *leasev1.Lease) error {
		return wire.Send(&leasev1.WatchLeasesResponse{Type: leasev1.WatchLeasesResponse_Type(kind), Lease: lease, Version: "v"})
	})
}

// followItems follows own items until the replica becomes unavailable. The cache makes a copy only
// of an item that changed.
func followItems[T resource](ctx context.Context, r *leaseReplica, read func() map[string]T, send func(kind int32, item T) error) error {
	r.watches.Add(1)
	defer r.watches.Add(-1)
	check := func() error {
		if r.unavailable.Load() {
			return rpcerror.ShuttingDown()
		}
		return nil
	}
	return follow(ctx, r.service.fakeService, check, read, func(a, b T) bool { return a == b }, send)
}
