package gateway_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// kitchen is a cluster whose Nodes and Leases are served by any number of fake replicas of leasesvc, each for its shards. They
// keep the promises of the API: who owns an answer, what a token is good for, and what a watch tells when a shard moves.
type kitchen struct {
	mu      sync.Mutex // guards the rest
	nodes   map[string]*leasev1.NodeHealth
	leases  map[string]*leasev1.Lease
	holders []string // id of the replica that holds each shard
	epoch   int64
	epochs  []int64 // of each shard
	members map[string]term.Member
	changed chan struct{} // closed at the next change
}

func newKitchen(holders ...string) *kitchen {
	k := &kitchen{
		nodes: map[string]*leasev1.NodeHealth{}, leases: map[string]*leasev1.Lease{}, members: map[string]term.Member{},
		holders: holders, epoch: 10, epochs: make([]int64, len(holders)), changed: make(chan struct{}),
	}
	for number := range holders {
		k.epoch++
		k.epochs[number] = k.epoch
	}
	return k
}

// change changes something and lets the watches look. It holds the lock.
func (k *kitchen) change(what func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	what()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kitchen) shardOf(resource string) int {
	return shard.Of("node", resource[strings.LastIndex(resource, "/")+1:], len(k.holders))
}

// put makes a Node and its Lease so.
func (k *kitchen) put(name, zone string, health leasev1.NodeHealth_Health) {
	k.change(func() {
		k.nodes["nodes/"+name] = &leasev1.NodeHealth{Name: "nodes/" + name, Zone: zone, Health: health, Reason: "a test says so"}
		lease := "namespaces/kube-node-lease/leases/" + name
		k.leases[lease] = &leasev1.Lease{Name: lease, State: leasev1.Lease_STATE_ALIVE}
	})
}

func (k *kitchen) remove(name string) {
	k.change(func() {
		delete(k.nodes, "nodes/"+name)
		delete(k.leases, "namespaces/kube-node-lease/leases/"+name)
	})
}

// move gives a shard to another replica.
func (k *kitchen) move(number int, to string) {
	k.change(func() {
		k.epoch++
		k.holders[number], k.epochs[number] = to, k.epoch
	})
}

func (k *kitchen) owner(number int) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.members[k.holders[number]].GRPCAddress
}

// cook is one replica.
type cook struct {
	leasev1.UnimplementedLeaseServiceServer
	leasev1.UnimplementedNodeHealthServiceServer

	kitchen *kitchen
	id      string
	// disabled is whether its loop node-health is off; away is whether it fails all calls.
	disabled, away atomic.Bool
	calls, watches atomic.Int64
	// reckoned counts what was made of items: like leasesvc, a cook reckons times back from now, and never gets quite the same.
	reckoned atomic.Int64
	resumed  atomic.Int64
}

// hire starts a replica on loopback.
func (k *kitchen) hire(t testing.TB, id string) (*cook, term.Member) {
	t.Helper()
	c := &cook{kitchen: k, id: id}
	member := serve(t, replica("leasesvc", id), func(r grpc.ServiceRegistrar) {
		leasev1.RegisterLeaseServiceServer(r, c)
		leasev1.RegisterNodeHealthServiceServer(r, c)
		status.New(status.Deps{
			Member: replica("leasesvc", id), Ready: observe.NewChecks(), Terms: c.terms,
			Loops: func() []loop.Status { return nil }, Counts: func() map[string]int64 { return nil },
		}).Register(r)
	})
	k.change(func() { k.members[id] = member })
	return c, member
}

func (c *cook) terms() []term.Holding {
	k := c.kitchen
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []term.Holding
	for number, holder := range k.holders {
		all = append(all, term.Holding{
			Shard: number, ReplicaID: holder, Epoch: k.epochs[number], Here: holder == c.id, GRPCAddress: k.members[holder].GRPCAddress,
		})
	}
	return all
}

func (c *cook) admit(nodes bool) error {
	c.calls.Add(1)
	switch {
	case c.away.Load():
		return rpcerror.New(codes.Unavailable, "CACHE_NOT_SYNCED", "the Nodes are still being listed")
	case nodes && c.disabled.Load():
		return rpcerror.New(codes.FailedPrecondition, "LOOP_DISABLED", "the loop node-health is off; start leasesvc with --loops=*,node-health")
	}
	return nil
}

// own says NOT_LEADER for what another replica owns.
func (c *cook) own(number int) error {
	if owner := c.kitchen.owner(number); owner != c.kitchen.members[c.id].GRPCAddress {
		return rpcerror.NotLeader("leasesvc", owner)
	}
	return nil
}

func (c *cook) freshness() *statusv1.Freshness {
	return &statusv1.Freshness{ReplicaId: c.id, ReadTime: timestamppb.Now()}
}

// resource is what replicas tell of; T is a pointer to a message.
type resource interface {
	comparable
	proto.Message
	GetName() string
	GetEpoch() int64
}

// cache has what a replica made of the items of its shards, so that a large fleet is not copied at each look.
type cache[T resource] map[string]struct{ from, made T }

// ours are copies of the items of this replica's shards with their shards and epochs. The cache is for the caller alone.
func ours[T resource](c *cook, all map[string]T, made cache[T], complete func(item T, shard int32, epoch int64)) map[string]T {
	k := c.kitchen
	k.mu.Lock()
	defer k.mu.Unlock()
	own := make(map[string]T, len(made))
	for name, item := range all {
		number := k.shardOf(name)
		if k.holders[number] != c.id {
			continue
		}
		last, known := made[name]
		if !known || last.from != item || last.made.GetEpoch() != k.epochs[number] {
			last.from, last.made = item, proto.CloneOf(item)
			complete(last.made, int32(number), k.epochs[number])
			made[name] = last
		}
		own[name] = last.made
	}
	return own
}

func (c *cook) nodesBy(made cache[*leasev1.NodeHealth]) map[string]*leasev1.NodeHealth {
	return ours(c, c.kitchen.nodes, made, func(n *leasev1.NodeHealth, shard int32, epoch int64) {
		n.Shard, n.Epoch, n.ChangeTime = shard, epoch, c.reckon()
	})
}

func (c *cook) leasesBy(made cache[*leasev1.Lease]) map[string]*leasev1.Lease {
	return ours(c, c.kitchen.leases, made, func(l *leasev1.Lease, shard int32, epoch int64) {
		l.Shard, l.Epoch, l.StartTime = shard, epoch, c.reckon()
	})
}

func (c *cook) reckon() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: int32(c.reckoned.Add(1) % int64(time.Second))}
}

func (c *cook) ownNodes() map[string]*leasev1.NodeHealth {
	return c.nodesBy(cache[*leasev1.NodeHealth]{})
}

func (c *cook) ownLeases() map[string]*leasev1.Lease { return c.leasesBy(cache[*leasev1.Lease]{}) }

func (c *cook) node(name string) (*leasev1.NodeHealth, error) {
	if err := c.admit(true); err != nil {
		return nil, err
	}
	if err := c.own(c.kitchen.shardOf(name)); err != nil {
		return nil, err
	}
	if node := c.ownNodes()[name]; node != nil {
		return node, nil
	}
	return nil, rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", name+" does not exist")
}

func (c *cook) GetNodeHealth(_ context.Context, request *leasev1.GetNodeHealthRequest) (*leasev1.GetNodeHealthResponse, error) {
	node, err := c.node(request.Name)
	if err != nil {
		return nil, err
	}
	return &leasev1.GetNodeHealthResponse{Node: node, Freshness: c.freshness()}, nil
}

func (c *cook) ExplainNodeHealth(_ context.Context, request *leasev1.ExplainNodeHealthRequest) (*leasev1.ExplainNodeHealthResponse, error) {
	node, err := c.node(request.Name)
	if err != nil {
		return nil, err
	}
	evidence, broken := chainOf(node, c.id)
	return &leasev1.ExplainNodeHealthResponse{Node: node, Evidence: evidence, FirstBroken: broken, Freshness: c.freshness()}, nil
}

// chainOf is a chain of evidence as leasesvc would tell it.
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
		link("LAST_BEAT", good, "last heard 2 s ago; it beats every 5 s", "")
		link("DEADLINE", good, "in 18 s", "")
		return evidence, -1
	}
	link("LAST_BEAT", bad, "last heard 26 s ago; it beats every 5 s", "look at the kubelet: journalctl -u kubelet")
	link("DEADLINE", bad, "passed 6 s ago", "")
	return evidence, 1
}

func (c *cook) ListZones(context.Context, *leasev1.ListZonesRequest) (*leasev1.ListZonesResponse, error) {
	if err := c.admit(true); err != nil {
		return nil, err
	}
	if err := c.own(0); err != nil {
		return nil, err
	}
	return &leasev1.ListZonesResponse{Zones: c.kitchen.zones(), Freshness: c.freshness()}, nil
}

func (k *kitchen) zones() []*leasev1.Zone {
	k.mu.Lock()
	defer k.mu.Unlock()
	byName := map[string]*leasev1.Zone{}
	for _, node := range k.nodes {
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

func (c *cook) GetLease(_ context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	if err := c.admit(false); err != nil {
		return nil, err
	}
	if err := c.own(c.kitchen.shardOf(request.Name)); err != nil {
		return nil, err
	}
	if lease := c.ownLeases()[request.Name]; lease != nil {
		return &leasev1.GetLeaseResponse{Lease: lease, Freshness: c.freshness()}, nil
	}
	return nil, rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "nobody beats for "+request.Name)
}

// pageOf cuts a page; a token is the last name behind the list's arguments.
func pageOf[T any](all map[string]T, arguments, token string, size int32, fits func(T) bool) (page []T, next string, err error) {
	last, ours := strings.CutPrefix(token, arguments+"|")
	if token != "" && !ours {
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

func (c *cook) ListNodeHealth(_ context.Context, request *leasev1.ListNodeHealthRequest) (*leasev1.ListNodeHealthResponse, error) {
	if err := c.admit(true); err != nil {
		return nil, err
	}
	arguments := fmt.Sprint(request.Health, request.Zone)
	page, next, err := pageOf(c.ownNodes(), arguments, request.PageToken, request.PageSize, func(node *leasev1.NodeHealth) bool {
		return (request.Health == 0 || node.Health == request.Health) && (request.Zone == "" || node.Zone == request.Zone)
	})
	return &leasev1.ListNodeHealthResponse{Nodes: page, NextPageToken: next}, err
}

func (c *cook) ListLeases(_ context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	if err := c.admit(false); err != nil {
		return nil, err
	}
	page, next, err := pageOf(c.ownLeases(), request.Parent, request.PageToken, request.PageSize, func(*leasev1.Lease) bool { return true })
	return &leasev1.ListLeasesResponse{Leases: page, NextPageToken: next}, err
}

func (c *cook) WatchNodeHealth(_ *leasev1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[leasev1.WatchNodeHealthResponse]) error {
	if err := c.admit(true); err != nil {
		return err
	}
	made := cache[*leasev1.NodeHealth]{}
	read := func() map[string]*leasev1.NodeHealth { return c.nodesBy(made) }
	return follow(wire.Context(), c, read, func(what int32, node *leasev1.NodeHealth) error {
		return wire.Send(&leasev1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_Type(what), Node: node})
	})
}

func (c *cook) WatchLeases(request *leasev1.WatchLeasesRequest, wire grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	if err := c.admit(false); err != nil {
		return err
	}
	if request.StartVersion != "" {
		c.resumed.Add(1)
		return rpcerror.New(codes.OutOfRange, "VERSION_TOO_OLD", "the deletions since are not remembered")
	}
	made := cache[*leasev1.Lease]{}
	read := func() map[string]*leasev1.Lease { return c.leasesBy(made) }
	return follow(wire.Context(), c, read, func(what int32, lease *leasev1.Lease) error {
		return wire.Send(&leasev1.WatchLeasesResponse{Type: leasev1.WatchLeasesResponse_Type(what), Lease: lease, Version: "v"})
	})
}

// follow tells what differs from what was told before, at each change. Both services number their types of events alike.
func follow[T resource](ctx context.Context, c *cook, read func() map[string]T, send func(what int32, item T) error) error {
	c.watches.Add(1)
	defer c.watches.Add(-1)
	told := map[string]T{}
	for first := true; ; first = false {
		c.kitchen.mu.Lock()
		changed := c.kitchen.changed
		c.kitchen.mu.Unlock()
		if c.away.Load() {
			return rpcerror.ShuttingDown()
		}
		now := read()
		for name, item := range now {
			before, known := told[name]
			if known && before == item {
				continue
			}
			what := int32(1)
			if known {
				what = 2
			}
			if err := send(what, item); err != nil {
				return err
			}
		}
		for name, item := range told {
			if _, there := now[name]; !there {
				if err := send(3, item); err != nil {
					return err
				}
			}
		}
		told = now
		if first {
			var none T
			if err := send(4, none); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
