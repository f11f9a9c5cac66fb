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
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// fakeLeasesvc is leasesvc with Nodes and Leases. Its replicas keep the contract of the API: which
// one answers, what a page token continues, and what a watch reports when a shard moves.
type fakeLeasesvc struct {
	*fakeService
	nodes  map[string]*nodev1.NodeHealth
	leases map[string]*leasev1.Lease
}

func newLeasesvc(leaders ...string) *fakeLeasesvc {
	return &fakeLeasesvc{
		fakeService: newFakeService("leasesvc", leaders...), nodes: map[string]*nodev1.NodeHealth{}, leases: map[string]*leasev1.Lease{},
	}
}

func (f *fakeLeasesvc) shardOf(resource string) int {
	return shard.Of("node", resource[strings.LastIndex(resource, "/")+1:], len(f.leaders))
}

// put sets the health of a Node and makes its Lease alive.
func (f *fakeLeasesvc) put(name, zone string, health nodev1.NodeHealth_Health) {
	f.change(func() {
		f.nodes["nodes/"+name] = &nodev1.NodeHealth{Name: "nodes/" + name, Zone: "zones/" + zone, Health: health, Message: "set by the test"}
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
	nodev1.UnimplementedNodeHealthServiceServer

	service *fakeLeasesvc
	id      string
	// disabled is whether its loop node-health is off; unavailable is whether all calls fail;
	// impostor is whether it answers as another replica.
	disabled, unavailable, impostor atomic.Bool
	calls, watches                  atomic.Int64
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
		nodev1.RegisterNodeHealthServiceServer(registrar, r)
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

func (r *leaseReplica) sources() []*metav1.Source {
	sources := r.service.sources(r.id)
	if r.impostor.Load() {
		sources[0].ReplicaId = "another"
	}
	return sources
}

// ownItems returns copies of the items of the replica's shards with their owners. The copies of
// before are used again, so that a large cluster is not copied at each change. They belong to the
// caller.
func ownItems[T item](r *leaseReplica, all map[string]T, copies map[string]T, complete func(item T, owner *metav1.Owner)) map[string]T {
	f := r.service
	f.mu.Lock()
	defer f.mu.Unlock()
	own := make(map[string]T, len(copies))
	for name, item := range all {
		number := int32(f.shardOf(name))
		if f.leaders[number] != r.id {
			continue
		}
		key := fmt.Sprintf("%p %d", any(item), f.epochs[number])
		last, known := copies[key]
		if !known {
			last = proto.CloneOf(item)
			complete(last, &metav1.Owner{ReplicaId: r.id, Shard: &number, Epoch: f.epochs[number]})
			copies[key] = last
		}
		own[name] = last
	}
	return own
}

func (r *leaseReplica) nodesBy(copies map[string]*nodev1.NodeHealth) map[string]*nodev1.NodeHealth {
	return ownItems(r, r.service.nodes, copies, func(n *nodev1.NodeHealth, owner *metav1.Owner) {
		n.Owner, n.ChangeTime = owner, r.approximateTime()
	})
}

func (r *leaseReplica) leasesBy(copies map[string]*leasev1.Lease) map[string]*leasev1.Lease {
	return ownItems(r, r.service.leases, copies, func(l *leasev1.Lease, owner *metav1.Owner) {
		l.Owner, l.StartTime = owner, r.approximateTime()
	})
}

func (r *leaseReplica) approximateTime() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: int32(r.copies.Add(1) % int64(time.Second))}
}

func (r *leaseReplica) ownNodes() map[string]*nodev1.NodeHealth {
	return r.nodesBy(map[string]*nodev1.NodeHealth{})
}

func (r *leaseReplica) ownLeases() map[string]*leasev1.Lease {
	return r.leasesBy(map[string]*leasev1.Lease{})
}

func (r *leaseReplica) node(name string) (*nodev1.NodeHealth, error) {
	if err := r.admit(true); err != nil {
		return nil, err
	}
	if err := r.service.checkLeader(r.service.shardOf(name), r.id); err != nil {
		return nil, err
	}
	if node := r.ownNodes()[name]; node != nil {
		return node, nil
	}
	return nil, rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", name+" does not exist")
}

func (r *leaseReplica) GetNodeHealth(_ context.Context, request *nodev1.GetNodeHealthRequest) (*nodev1.GetNodeHealthResponse, error) {
	node, err := r.node(request.Name)
	if err != nil {
		return nil, err
	}
	return &nodev1.GetNodeHealthResponse{Node: node, Sources: r.sources()}, nil
}

func (r *leaseReplica) ExplainNodeHealth(_ context.Context, request *nodev1.ExplainNodeHealthRequest) (*nodev1.ExplainNodeHealthResponse, error) {
	node, err := r.node(request.Name)
	if err != nil {
		return nil, err
	}
	evidence, broken := chainOf(node, r.id)
	return &nodev1.ExplainNodeHealthResponse{Node: node, Evidence: evidence, BrokenIndex: broken, Sources: r.sources()}, nil
}

// chainOf returns the evidence that leasesvc would report.
func chainOf(node *nodev1.NodeHealth, replica string) (evidence []*metav1.Evidence, broken *int32) {
	const ok, failed, absent = metav1.Evidence_RESULT_OK, metav1.Evidence_RESULT_FAILED, metav1.Evidence_RESULT_NOT_APPLICABLE
	link := func(code string, result metav1.Evidence_Result, message, next string) {
		evidence = append(evidence, &metav1.Evidence{
			Code: code, Result: result, Message: message, Next: next, Source: "lease", ReplicaId: replica,
			Version: fmt.Sprint(node.Owner.GetEpoch()), ObserveTime: timestamppb.New(time.Now()),
		})
	}
	link("LEASE", absent, "no lease: the kubelet writes its Lease object itself", "")
	if node.Health < nodev1.NodeHealth_HEALTH_SUSPECT {
		link("LAST_BEAT", ok, "last heard 2 s ago; a heartbeat is due every 5 s", "")
		link("EXPIRE_TIME", ok, "in 18 s", "")
		return evidence, nil
	}
	link("LAST_BEAT", failed, "last heard 26 s ago; a heartbeat is due every 5 s", "look at the kubelet: journalctl -u kubelet")
	link("EXPIRE_TIME", failed, "passed 6 s ago", "")
	return evidence, proto.Int32(1)
}

// judge admits a call about zones.
func (r *leaseReplica) judge() error {
	if err := r.admit(true); err != nil {
		return err
	}
	return r.service.checkLeader(0, r.id)
}

func (r *leaseReplica) ListZones(context.Context, *nodev1.ListZonesRequest) (*nodev1.ListZonesResponse, error) {
	if err := r.judge(); err != nil {
		return nil, err
	}
	zones := r.service.zones()
	ordered := slices.SortedFunc(maps.Values(zones), func(a, b *nodev1.Zone) int { return strings.Compare(a.Name, b.Name) })
	return &nodev1.ListZonesResponse{Zones: ordered, ResumeToken: "of " + r.id, Sources: r.sources()}, nil
}

func (r *leaseReplica) WatchZones(_ *nodev1.WatchZonesRequest, wire grpc.ServerStreamingServer[nodev1.WatchZonesResponse]) error {
	return watch[*nodev1.Zone]{
		service: r.service.fakeService, replica: r.id, check: r.judge, read: r.service.zones,
		same: func(a, b *nodev1.Zone) bool { return proto.Equal(a, b) },
		send: func(kind metav1.EventType, zone *nodev1.Zone, mark *metav1.Bookmark) error {
			return wire.Send(&nodev1.WatchZonesResponse{Type: kind, Zone: zone, Bookmark: mark})
		},
	}.serve(wire.Context())
}

func (f *fakeLeasesvc) zones() map[string]*nodev1.Zone {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*nodev1.Zone{}
	for _, node := range f.nodes {
		zone := byName[node.Zone]
		if zone == nil {
			zone = &nodev1.Zone{Name: node.Zone, State: nodev1.Zone_STATE_NORMAL, TaintsPerSecond: 0.1}
			zone.Owner = &metav1.Owner{ReplicaId: f.leaders[0], Shard: proto.Int32(0), Epoch: f.epochs[0]}
			byName[node.Zone] = zone
		}
		if zone.NodeCount++; node.Health != nodev1.NodeHealth_HEALTH_READY {
			zone.NotReadyNodeCount++
		}
		if zone.NotReadyNodeCount*2 > zone.NodeCount {
			zone.State = nodev1.Zone_STATE_PARTIAL_DISRUPTION
		}
	}
	return byName
}

func (r *leaseReplica) GetLease(_ context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	if err := r.admit(false); err != nil {
		return nil, err
	}
	if err := r.service.checkLeader(r.service.shardOf(request.Name), r.id); err != nil {
		return nil, err
	}
	if lease := r.ownLeases()[request.Name]; lease != nil {
		return &leasev1.GetLeaseResponse{Lease: lease, Sources: r.sources()}, nil
	}
	return nil, rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "no Lease "+request.Name)
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

func (r *leaseReplica) ListNodeHealth(_ context.Context, request *nodev1.ListNodeHealthRequest) (*nodev1.ListNodeHealthResponse, error) {
	if err := r.admit(true); err != nil {
		return nil, err
	}
	sources := r.sources()
	page, next, err := pageOf(r.ownNodes(), fmt.Sprint(request.Healths, request.Zones), request.PageToken, request.PageSize, func(node *nodev1.NodeHealth) bool {
		return (len(request.Healths) == 0 || slices.Contains(request.Healths, node.Health)) && (len(request.Zones) == 0 || slices.Contains(request.Zones, node.Zone))
	})
	return &nodev1.ListNodeHealthResponse{Nodes: page, NextPageToken: next, Sources: sources}, err
}

func (r *leaseReplica) ListLeases(_ context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	if err := r.admit(false); err != nil {
		return nil, err
	}
	sources := r.sources()
	page, next, err := pageOf(r.ownLeases(), request.Parent, request.PageToken, request.PageSize, func(*leasev1.Lease) bool { return true })
	return &leasev1.ListLeasesResponse{Leases: page, NextPageToken: next, Sources: sources}, err
}

func (r *leaseReplica) WatchNodeHealth(_ *nodev1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[nodev1.WatchNodeHealthResponse]) error {
	if err := r.admit(true); err != nil {
		return err
	}
	copies := map[string]*nodev1.NodeHealth{}
	read := func() map[string]*nodev1.NodeHealth { return r.nodesBy(copies) }
	return followItems(wire.Context(), r, read, func(kind metav1.EventType, node *nodev1.NodeHealth, mark *metav1.Bookmark) error {
		return wire.Send(&nodev1.WatchNodeHealthResponse{Type: kind, Node: node, Bookmark: mark})
	})
}

func (r *leaseReplica) WatchLeases(request *leasev1.WatchLeasesRequest, wire grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	if err := r.admit(false); err != nil {
		return err
	}
	if request.ResumeToken != "" {
		r.resumed.Add(1)
		return rpcerror.New(codes.OutOfRange, rpcerror.ResumeTokenExpiredReason, "the deletions since are not remembered")
	}
	copies := map[string]*leasev1.Lease{}
	read := func() map[string]*leasev1.Lease { return r.leasesBy(copies) }
	return followItems(wire.Context(), r, read, func(kind metav1.EventType, lease *leasev1.Lease, mark *metav1.Bookmark) error {
		return wire.Send(&leasev1.WatchLeasesResponse{Type: kind, Lease: lease, ResumeToken: "v", Bookmark: mark})
	})
}

// followItems follows own items until the replica becomes unavailable.
func followItems[T item](ctx context.Context, r *leaseReplica, read func() map[string]T, send func(metav1.EventType, T, *metav1.Bookmark) error) error {
	r.watches.Add(1)
	defer r.watches.Add(-1)
	return watch[T]{
		service: r.service.fakeService, replica: r.id, read: read, same: func(a, b T) bool { return a == b },
		check: func() error {
			if r.unavailable.Load() {
				return rpcerror.ShuttingDown()
			}
			return nil
		},
		send: func(kind metav1.EventType, item T, mark *metav1.Bookmark) error {
			if mark != nil && r.impostor.Load() {
				mark.Sources[0].ReplicaId = "another"
			}
			return send(kind, item, mark)
		},
	}.serve(ctx)
}
