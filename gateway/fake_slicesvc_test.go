package gateway_test

import (
	"context"
	"fmt"
	"strings"
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

// fakeSlicesvc is slicesvc with Services. Each replica reports all of them; for those of its shards
// it also reports the epoch of its term and a last plan.
type fakeSlicesvc struct {
	*fakeService
	services map[string]*slicev1.ServiceSlices
}

func newSlicesvc(holders ...string) *fakeSlicesvc {
	return &fakeSlicesvc{fakeService: newFakeService("slicesvc", holders...), services: map[string]*slicev1.ServiceSlices{}}
}

func (f *fakeSlicesvc) shardOf(service string) int {
	return shard.Of("service", service, len(f.holders))
}

func serviceName(namespace, name string) string {
	return "namespaces/" + namespace + "/services/" + name
}

func (f *fakeSlicesvc) put(name string, endpoints int32) {
	f.change(func() {
		f.services[name] = &slicev1.ServiceSlices{
			Name: name, Managed: true, Endpoints: endpoints, ReadyEndpoints: endpoints, IdealSlices: 1,
			Slices: []*slicev1.EndpointSlice{{
				Name: name[strings.LastIndex(name, "/")+1:] + "-a", AddressType: "IPv4", Endpoints: endpoints, ReadyEndpoints: endpoints, Capacity: 100,
				Ports: []*slicev1.EndpointSlice_Port{{Name: "http", Protocol: "TCP", Port: 8080}}, CreateTime: timestamppb.Now(),
			}},
		}
	})
}

// contend sets another writer of the slices of a Service.
func (f *fakeSlicesvc) contend(name, by string) {
	f.change(func() { f.services[name].ContendedBy = by })
}

func (f *fakeSlicesvc) remove(name string) { f.change(func() { delete(f.services, name) }) }

// sliceReplica is one replica.
type sliceReplica struct {
	slicev1.UnimplementedSliceServiceServer

	service *fakeSlicesvc
	id      string
	// syncing is whether its caches are not synced, hanging whether it does not answer, lagging
	// whether its cache has no Service yet.
	syncing, hanging, lagging atomic.Bool
	calls                     atomic.Int64
}

// start starts a replica.
func (f *fakeSlicesvc) start(t testing.TB, id string) (*sliceReplica, term.Member) {
	t.Helper()
	r := &sliceReplica{service: f, id: id}
	return r, f.fakeService.start(t, id, func(registrar grpc.ServiceRegistrar) { slicev1.RegisterSliceServiceServer(registrar, r) })
}

func (r *sliceReplica) admit(ctx context.Context) error {
	r.calls.Add(1)
	if r.hanging.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if r.syncing.Load() {
		return rpcerror.New(codes.Unavailable, "CACHE_NOT_SYNCED", "pods are being listed")
	}
	return nil
}

// all returns what the replica reports of the Services in a namespace.
func (r *sliceReplica) all(parent string) map[string]*slicev1.ServiceSlices {
	f := r.service
	f.mu.Lock()
	defer f.mu.Unlock()
	reported := map[string]*slicev1.ServiceSlices{}
	for name, service := range f.services {
		if parent != "" && parent != "namespaces/-" && !strings.HasPrefix(name, parent+"/") {
			continue
		}
		number := f.shardOf(name)
		service = proto.CloneOf(service)
		service.Shard = int32(number)
		if f.holders[number] == r.id {
			service.Epoch = f.epochs[number]
			service.LastPlan = &slicev1.ServiceSlices_LastPlan{Trigger: "POD", Creates: 1, Time: service.Slices[0].CreateTime}
		}
		reported[name] = service
	}
	return reported
}

func (r *sliceReplica) find(ctx context.Context, name string) (*slicev1.ServiceSlices, *statusv1.Freshness, error) {
	if err := r.admit(ctx); err != nil {
		return nil, nil, err
	}
	service := r.all("")[name]
	if service == nil || r.lagging.Load() {
		return nil, nil, rpcerror.New(codes.NotFound, "SERVICE_NOT_FOUND", "no service "+name,
			rpcerror.WithMetadata("epoch", fmt.Sprint(r.service.epochAt(r.service.shardOf(name), r.id))), rpcerror.WithMetadata("resource_version", r.version()))
	}
	return service, &statusv1.Freshness{ReplicaId: r.id, Epoch: service.Epoch, ResourceVersion: r.version()}, nil
}

// version is the resource version of the cache. A replica with a longer id has a newer cache.
func (r *sliceReplica) version() string { return "7" + strings.Repeat("0", len(r.id)) }

func (r *sliceReplica) GetServiceSlices(ctx context.Context, request *slicev1.GetServiceSlicesRequest) (*slicev1.GetServiceSlicesResponse, error) {
	service, freshness, err := r.find(ctx, request.Name)
	return &slicev1.GetServiceSlicesResponse{ServiceSlices: service, Freshness: freshness}, err
}

func (r *sliceReplica) ListServiceSlices(ctx context.Context, request *slicev1.ListServiceSlicesRequest) (*slicev1.ListServiceSlicesResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	page, next, err := pageOf(r.all(request.Parent), request.Parent, request.PageToken, request.PageSize, func(*slicev1.ServiceSlices) bool { return true })
	return &slicev1.ListServiceSlicesResponse{ServiceSlices: page, NextPageToken: next}, err
}

func (r *sliceReplica) PlanService(ctx context.Context, request *slicev1.PlanServiceRequest) (*slicev1.PlanServiceResponse, error) {
	_, freshness, err := r.find(ctx, request.Name)
	return &slicev1.PlanServiceResponse{Changes: []*statusv1.Change{{
		Verb: statusv1.Change_VERB_UPDATE, Reason: "ENDPOINTS_CHANGED", Detail: "1 endpoints added, 0 removed, 0 changed",
		Object: &statusv1.ObjectReference{Kind: "EndpointSlice", Name: "s-a"},
	}}, Freshness: freshness}, err
}

func (r *sliceReplica) ReconcileService(ctx context.Context, request *slicev1.ReconcileServiceRequest) (*slicev1.ReconcileServiceResponse, error) {
	service, freshness, err := r.find(ctx, request.Name)
	if err != nil {
		return nil, err
	}
	if service.Epoch == 0 && !request.ValidateOnly {
		return nil, r.service.checkHolder(int(service.Shard), r.id)
	}
	return &slicev1.ReconcileServiceResponse{Applied: !request.ValidateOnly, Freshness: freshness}, nil
}

func (r *sliceReplica) ExplainEndpoint(ctx context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	_, freshness, err := r.find(ctx, request.Name)
	return &slicev1.ExplainEndpointResponse{
		Included: true, FirstBroken: -1, Freshness: freshness, Evidence: []*statusv1.Evidence{{Code: "SLICE", ReplicaId: r.id, Finding: request.Pod}},
	}, err
}

func (r *sliceReplica) WatchServiceSlices(_ *slicev1.WatchServiceSlicesRequest, wire grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := r.admit(wire.Context()); err != nil {
		return err
	}
	check := func() error { return nil }
	read := func() map[string]*slicev1.ServiceSlices { return r.all("") }
	same := func(a, b *slicev1.ServiceSlices) bool { return proto.Equal(a, b) }
	return follow(wire.Context(), r.service.fakeService, check, read, same, func(kind int32, service *slicev1.ServiceSlices) error {
		return wire.Send(&slicev1.WatchServiceSlicesResponse{Type: slicev1.WatchServiceSlicesResponse_Type(kind), ServiceSlices: service})
	})
}
