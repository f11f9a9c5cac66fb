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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// pantry is a cluster whose Services are known to any number of fake replicas of slicesvc. Each tells of all of them; what it
// tells of those in its own shards carries the epoch of its term, and a last plan.
type pantry struct {
	mu       sync.Mutex // guards the rest
	services map[string]*slicev1.ServiceSlices
	holders  []string // id of the replica that holds each shard; empty for nobody
	epochs   []int64
	epoch    int64
	members  map[string]term.Member
	changed  chan struct{} // closed at the next change
}

func newPantry(holders ...string) *pantry {
	p := &pantry{
		services: map[string]*slicev1.ServiceSlices{}, members: map[string]term.Member{}, holders: holders,
		epoch: 10, epochs: make([]int64, len(holders)), changed: make(chan struct{}),
	}
	for number := range holders {
		p.epoch++
		p.epochs[number] = p.epoch
	}
	return p
}

func (p *pantry) change(what func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what()
	close(p.changed)
	p.changed = make(chan struct{})
}

func serviceName(namespace, name string) string {
	return "namespaces/" + namespace + "/services/" + name
}

func (p *pantry) put(name string, endpoints int32) {
	p.change(func() {
		p.services[name] = &slicev1.ServiceSlices{
			Name: name, Managed: true, Endpoints: endpoints, ReadyEndpoints: endpoints, IdealSlices: 1,
			Slices: []*slicev1.EndpointSlice{{
				Name: name[strings.LastIndex(name, "/")+1:] + "-a", AddressType: "IPv4", Endpoints: endpoints, ReadyEndpoints: endpoints, Capacity: 100,
				Ports: []*slicev1.EndpointSlice_Port{{Name: "http", Protocol: "TCP", Port: 8080}}, CreateTime: timestamppb.Now(),
			}},
		}
	})
}

// contend lets somebody else write the slices of a Service, too.
func (p *pantry) contend(name, by string) {
	p.change(func() { p.services[name].ContendedBy = by })
}

func (p *pantry) remove(name string) { p.change(func() { delete(p.services, name) }) }

// move gives all shards to a replica, or to nobody.
func (p *pantry) move(to string) {
	p.change(func() {
		for number := range p.holders {
			p.epoch++
			p.holders[number], p.epochs[number] = to, p.epoch
		}
	})
}

// packer is one replica.
type packer struct {
	slicev1.UnimplementedSliceServiceServer

	pantry *pantry
	id     string
	// filling is whether its caches are not filled yet, stuck whether it never answers.
	// lagging is whether its watch has not shown any Service yet.
	filling, stuck, lagging atomic.Bool
	calls                   atomic.Int64
}

// hire starts a replica on loopback.
func (p *pantry) hire(t testing.TB, id string) (*packer, term.Member) {
	t.Helper()
	one := &packer{pantry: p, id: id}
	member := serve(t, replica("slicesvc", id), func(r grpc.ServiceRegistrar) { slicev1.RegisterSliceServiceServer(r, one) })
	p.change(func() { p.members[id] = member })
	return one, member
}

func (c *packer) admit(ctx context.Context) error {
	c.calls.Add(1)
	if c.stuck.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if c.filling.Load() {
		return rpcerror.New(codes.Unavailable, "CACHE_NOT_SYNCED", "pods are being listed")
	}
	return nil
}

// all is what this replica tells of the Services of a namespace.
func (c *packer) all(parent string) map[string]*slicev1.ServiceSlices {
	p := c.pantry
	p.mu.Lock()
	defer p.mu.Unlock()
	told := map[string]*slicev1.ServiceSlices{}
	for name, service := range p.services {
		if parent != "" && parent != "namespaces/-" && !strings.HasPrefix(name, parent+"/") {
			continue
		}
		number := shard.Of("service", name, len(p.holders))
		service = proto.CloneOf(service)
		service.Shard = int32(number)
		if p.holders[number] == c.id {
			service.Epoch = p.epochs[number]
			service.LastPlan = &slicev1.ServiceSlices_LastPlan{Trigger: "POD", Creates: 1, Time: service.Slices[0].CreateTime}
		}
		told[name] = service
	}
	return told
}

func (c *packer) find(ctx context.Context, name string) (*slicev1.ServiceSlices, *statusv1.Freshness, error) {
	if err := c.admit(ctx); err != nil {
		return nil, nil, err
	}
	service := c.all("")[name]
	if service == nil || c.lagging.Load() {
		return nil, nil, rpcerror.New(codes.NotFound, "SERVICE_NOT_FOUND", "no service "+name,
			rpcerror.WithMetadata("epoch", fmt.Sprint(c.pantry.epochOf(name, c.id))), rpcerror.WithMetadata("resource_version", c.version()))
	}
	return service, &statusv1.Freshness{ReplicaId: c.id, Epoch: service.Epoch, ResourceVersion: c.version()}, nil
}

// version is how much of the cluster it has seen: of two replicas the one with the longer name sees more.
func (c *packer) version() string { return "7" + strings.Repeat("0", len(c.id)) }

// epochOf is that of the term under which a replica works on a Service, which need not exist.
func (p *pantry) epochOf(name, replica string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	number := shard.Of("service", name, len(p.holders))
	if p.holders[number] != replica {
		return 0
	}
	return p.epochs[number]
}

func (c *packer) GetServiceSlices(ctx context.Context, request *slicev1.GetServiceSlicesRequest) (*slicev1.GetServiceSlicesResponse, error) {
	service, freshness, err := c.find(ctx, request.Name)
	return &slicev1.GetServiceSlicesResponse{ServiceSlices: service, Freshness: freshness}, err
}

func (c *packer) ListServiceSlices(ctx context.Context, request *slicev1.ListServiceSlicesRequest) (*slicev1.ListServiceSlicesResponse, error) {
	if err := c.admit(ctx); err != nil {
		return nil, err
	}
	page, next, err := pageOf(c.all(request.Parent), request.Parent, request.PageToken, request.PageSize, func(*slicev1.ServiceSlices) bool { return true })
	return &slicev1.ListServiceSlicesResponse{ServiceSlices: page, NextPageToken: next}, err
}

func (c *packer) PlanService(ctx context.Context, request *slicev1.PlanServiceRequest) (*slicev1.PlanServiceResponse, error) {
	_, freshness, err := c.find(ctx, request.Name)
	return &slicev1.PlanServiceResponse{Changes: []*statusv1.Change{{
		Verb: statusv1.Change_VERB_UPDATE, Reason: "ENDPOINTS_CHANGED", Detail: "1 endpoints added, 0 removed, 0 changed",
		Object: &statusv1.ObjectReference{Kind: "EndpointSlice", Name: "s-a"},
	}}, Freshness: freshness}, err
}

func (c *packer) ReconcileService(ctx context.Context, request *slicev1.ReconcileServiceRequest) (*slicev1.ReconcileServiceResponse, error) {
	service, freshness, err := c.find(ctx, request.Name)
	if err != nil {
		return nil, err
	}
	if service.Epoch == 0 && !request.ValidateOnly {
		c.pantry.mu.Lock()
		defer c.pantry.mu.Unlock()
		return nil, rpcerror.NotLeader("slicesvc", c.pantry.members[c.pantry.holders[service.Shard]].GRPCAddress)
	}
	return &slicev1.ReconcileServiceResponse{Applied: !request.ValidateOnly, Freshness: freshness}, nil
}

func (c *packer) ExplainEndpoint(ctx context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	_, freshness, err := c.find(ctx, request.Name)
	return &slicev1.ExplainEndpointResponse{
		Included: true, FirstBroken: -1, Freshness: freshness, Evidence: []*statusv1.Evidence{{Code: "SLICE", ReplicaId: c.id, Finding: request.Pod}},
	}, err
}

func (c *packer) WatchServiceSlices(_ *slicev1.WatchServiceSlicesRequest, wire grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := c.admit(wire.Context()); err != nil {
		return err
	}
	told := map[string]*slicev1.ServiceSlices{}
	for first := true; ; first = false {
		c.pantry.mu.Lock()
		changed := c.pantry.changed
		c.pantry.mu.Unlock()
		now := c.all("")
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if proto.Equal(told[name], now[name]) {
				continue
			}
			if err := wire.Send(&slicev1.WatchServiceSlicesResponse{Type: slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED, ServiceSlices: now[name]}); err != nil {
				return err
			}
		}
		for name, service := range told {
			if now[name] != nil {
				continue
			}
			if err := wire.Send(&slicev1.WatchServiceSlicesResponse{Type: slicev1.WatchServiceSlicesResponse_TYPE_DELETED, ServiceSlices: service}); err != nil {
				return err
			}
		}
		told = now
		if first {
			if err := wire.Send(&slicev1.WatchServiceSlicesResponse{Type: slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-wire.Context().Done():
			return wire.Context().Err()
		}
	}
}
