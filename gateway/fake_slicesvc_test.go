package gateway_test

import (
	"context"
	"fmt"
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
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// fakeSlicesvc is slicesvc with Services. Each replica reports all of them; for those of its shards
// it also reports the epoch of its term and a last plan.
type fakeSlicesvc struct {
	*fakeService
	services map[string]*slicev1.ServiceSlices
}

func newSlicesvc(leaders ...string) *fakeSlicesvc {
	return &fakeSlicesvc{fakeService: newFakeService("slicesvc", leaders...), services: map[string]*slicev1.ServiceSlices{}}
}

func (f *fakeSlicesvc) shardOf(service string) int {
	return shard.Of("service", service, len(f.leaders))
}

func serviceName(namespace, name string) string {
	return "namespaces/" + namespace + "/serviceslices/" + name
}

func (f *fakeSlicesvc) put(name string, endpoints int32) {
	f.change(func() {
		f.services[name] = &slicev1.ServiceSlices{
			Name: name, EndpointCount: endpoints, ReadyEndpointCount: endpoints, IdealSliceCount: 1,
			Slices: []*slicev1.SliceSummary{{
				Name: name[strings.LastIndex(name, "/")+1:] + "-abcde", AddressType: "IPv4", EndpointCount: endpoints, ReadyEndpointCount: endpoints,
				Capacity: 100, Ports: []*slicev1.SliceSummary_Port{{Name: "http", Protocol: "TCP", Port: proto.Int32(8080)}}, CreateTime: timestamppb.Now(),
			}},
		}
	})
}

// contend sets another writer of the slices of a Service.
func (f *fakeSlicesvc) contend(name, by string) {
	f.change(func() {
		f.services[name].Conditions = []*metav1.Condition{{
			Type: "Contended", Status: metav1.Condition_STATUS_TRUE, Reason: "ANOTHER_WRITER", Message: by + " keeps changing the same slices",
		}}
	})
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
	// former is the epoch of a term that has ended, which the replica does not know yet; 0 if it
	// does.
	former atomic.Int64
	// delay is how long the replica waits before it answers.
	delay atomic.Int64
}

// start starts a replica.
func (f *fakeSlicesvc) start(t testing.TB, id string) (*sliceReplica, term.Member) {
	t.Helper()
	r := &sliceReplica{service: f, id: id}
	return r, f.fakeService.start(t, id, func(registrar grpc.ServiceRegistrar) { slicev1.RegisterSliceServiceServer(registrar, r) })
}

func (r *sliceReplica) admit(ctx context.Context) error {
	r.calls.Add(1)
	time.Sleep(time.Duration(r.delay.Load()))
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
		service.Owner = &metav1.Owner{ReplicaId: f.leaders[number], Shard: proto.Int32(int32(number))}
		if f.leaders[number] == r.id {
			service.Owner.Epoch = f.epochs[number]
			service.Syncs = []*slicev1.ServiceSlices_Sync{{LastPlan: &slicev1.ServiceSlices_LastPlan{
				Trigger: "POD", CreateCount: 1, StartTime: service.Slices[0].CreateTime,
			}}}
		}
		reported[name] = service
	}
	return reported
}

func (r *sliceReplica) find(ctx context.Context, name string) (*slicev1.ServiceSlices, []*metav1.Source, error) {
	if err := r.admit(ctx); err != nil {
		return nil, nil, err
	}
	service := r.all("")[name]
	if service == nil || r.lagging.Load() {
		return nil, nil, rpcerror.New(codes.NotFound, "SERVICE_NOT_FOUND", "no service "+name,
			rpcerror.WithMetadata("epoch", fmt.Sprint(r.service.epochAt(r.service.shardOf(name), r.id))), rpcerror.WithMetadata("resource_version", r.version()))
	}
	if former := r.former.Load(); former != 0 {
		service.Owner.Epoch = former
	}
	return service, []*metav1.Source{{
		Service: "slicesvc", ReplicaId: r.id, Epoch: service.Owner.Epoch, Caches: []*metav1.CacheStatus{{Kind: "Pod", ResourceVersion: "999999999999"}, {Kind: "Service", ResourceVersion: r.version()}},
	}}, nil
}

// version is the resource version of the cache. A replica with a longer id has a newer cache.
func (r *sliceReplica) version() string { return "7" + strings.Repeat("0", len(r.id)) }

func (r *sliceReplica) GetServiceSlices(ctx context.Context, request *slicev1.GetServiceSlicesRequest) (*slicev1.GetServiceSlicesResponse, error) {
	service, sources, err := r.find(ctx, request.Name)
	return &slicev1.GetServiceSlicesResponse{ServiceSlices: service, Sources: sources}, err
}

func (r *sliceReplica) ListServiceSlices(ctx context.Context, request *slicev1.ListServiceSlicesRequest) (*slicev1.ListServiceSlicesResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	page, next, err := pageOf(r.all(request.Parent), request.Parent, request.PageToken, request.PageSize, func(*slicev1.ServiceSlices) bool { return true })
	return &slicev1.ListServiceSlicesResponse{ServiceSlices: page, NextPageToken: next, Sources: r.service.sources(r.id)}, err
}

func (r *sliceReplica) PlanServiceSlices(ctx context.Context, request *slicev1.PlanServiceSlicesRequest) (*slicev1.PlanServiceSlicesResponse, error) {
	_, sources, err := r.find(ctx, request.Name)
	return &slicev1.PlanServiceSlicesResponse{Plan: &metav1.Plan{Changes: []*metav1.Change{{
		Verb: metav1.Change_VERB_UPDATE, Reason: "ENDPOINTS_CHANGED", Message: "1 endpoints added, 0 removed, 0 changed",
		Object: &metav1.ObjectReference{Kind: "EndpointSlice", Name: "s-a"},
	}}}, Sources: sources}, err
}

func (r *sliceReplica) ReconcileServiceSlices(ctx context.Context, request *slicev1.ReconcileServiceSlicesRequest) (*slicev1.ReconcileServiceSlicesResponse, error) {
	service, sources, err := r.find(ctx, request.Name)
	if err != nil {
		return nil, err
	}
	if service.Owner.Epoch == 0 && !request.ValidateOnly {
		return nil, r.service.checkLeader(int(service.Owner.GetShard()), r.id)
	}
	outcome := metav1.Change_OUTCOME_PLANNED
	if !request.ValidateOnly {
		outcome = metav1.Change_OUTCOME_APPLIED
	}
	plan := &metav1.Plan{Changes: []*metav1.Change{{Reason: request.RequestId, Outcome: outcome}}}
	return &slicev1.ReconcileServiceSlicesResponse{Plan: plan, Sources: sources}, nil
}

func (r *sliceReplica) ExplainEndpoint(ctx context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	_, sources, err := r.find(ctx, request.Name)
	return &slicev1.ExplainEndpointResponse{
		Included: true, Sources: sources, Evidence: []*metav1.Evidence{{Code: "SLICE", ReplicaId: r.id, Message: request.GetPod()}},
	}, err
}

func (r *sliceReplica) WatchServiceSlices(_ *slicev1.WatchServiceSlicesRequest, wire grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := r.admit(wire.Context()); err != nil {
		return err
	}
	return watch[*slicev1.ServiceSlices]{
		service: r.service.fakeService, replica: r.id, check: func() error { return nil },
		read: func() map[string]*slicev1.ServiceSlices { return r.all("") },
		same: func(a, b *slicev1.ServiceSlices) bool { return proto.Equal(a, b) },
		send: func(kind metav1.EventType, service *slicev1.ServiceSlices, mark *metav1.Bookmark) error {
			return wire.Send(&slicev1.WatchServiceSlicesResponse{Type: kind, ServiceSlices: service, Bookmark: mark})
		},
	}.serve(wire.Context())
}
