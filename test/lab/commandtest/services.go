package commandtest

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// GetNodeHealth returns one of Nodes.
func (g *Gateway) GetNodeHealth(_ context.Context, request *nodev1.GetNodeHealthRequest) (*nodev1.GetNodeHealthResponse, error) {
	node, err := get(g, request, g.Nodes, "NODE_NOT_FOUND")
	return &nodev1.GetNodeHealthResponse{Node: node, Sources: g.Sources}, err
}

// ListNodeHealth returns a page of the selected Nodes.
func (g *Gateway) ListNodeHealth(_ context.Context, request *nodev1.ListNodeHealthRequest) (*nodev1.ListNodeHealthResponse, error) {
	page, next, err := pageOf(g, request, g.Nodes, func(node *nodev1.NodeHealth) bool {
		return isSelected(request.GetHealths(), node.GetHealth()) && isSelected(request.GetZones(), node.GetZone())
	})
	return &nodev1.ListNodeHealthResponse{Nodes: page, NextPageToken: next, Sources: g.Sources, Missing: g.Missing}, err
}

// WatchNodeHealth sends the events of the next of NodeWatches.
func (g *Gateway) WatchNodeHealth(request *nodev1.WatchNodeHealthRequest, stream grpc.ServerStreamingServer[nodev1.WatchNodeHealthResponse]) error {
	return serveWatch(g, request, g.NodeWatches, stream)
}

// ExplainNodeHealth returns NodeExplanation.
func (g *Gateway) ExplainNodeHealth(_ context.Context, request *nodev1.ExplainNodeHealthRequest) (*nodev1.ExplainNodeHealthResponse, error) {
	return g.NodeExplanation, g.take(request)
}

// GetZone returns one of Zones.
func (g *Gateway) GetZone(_ context.Context, request *nodev1.GetZoneRequest) (*nodev1.GetZoneResponse, error) {
	zone, err := get(g, request, g.Zones.GetZones(), "ZONE_NOT_FOUND")
	return &nodev1.GetZoneResponse{Zone: zone}, err
}

// ListZones returns Zones.
func (g *Gateway) ListZones(_ context.Context, request *nodev1.ListZonesRequest) (*nodev1.ListZonesResponse, error) {
	g.record(request)
	if g.Zones == nil {
		return nil, rpcerror.New(codes.Unavailable, "NO_LEADER", "shard 0 of leasesvc has no leader")
	}
	return g.Zones, nil
}

// WatchZones sends the events of the next of ZoneWatches.
func (g *Gateway) WatchZones(request *nodev1.WatchZonesRequest, stream grpc.ServerStreamingServer[nodev1.WatchZonesResponse]) error {
	return serveWatch(g, request, g.ZoneWatches, stream)
}

// GetLease returns one of Leases.
func (g *Gateway) GetLease(_ context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	lease, err := get(g, request, g.Leases, "LEASE_NOT_FOUND")
	return &leasev1.GetLeaseResponse{Lease: lease}, err
}

// ListLeases returns a page of the selected Leases.
func (g *Gateway) ListLeases(_ context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	page, next, err := pageOf(g, request, g.Leases, func(lease *leasev1.Lease) bool {
		return isSelected(request.GetStates(), lease.GetState()) && strings.HasPrefix(lease.GetName(), request.GetParent())
	})
	return &leasev1.ListLeasesResponse{Leases: page, NextPageToken: next, Sources: g.Sources, Missing: g.Missing}, err
}

// WatchLeases sends the events of the next of LeaseWatches.
func (g *Gateway) WatchLeases(request *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	return serveWatch(g, request, g.LeaseWatches, stream)
}

// GetServiceSlices returns one of Services.
func (g *Gateway) GetServiceSlices(_ context.Context, request *slicev1.GetServiceSlicesRequest) (*slicev1.GetServiceSlicesResponse, error) {
	service, err := get(g, request, g.Services, "SERVICE_NOT_FOUND")
	return &slicev1.GetServiceSlicesResponse{ServiceSlices: service}, err
}

// ListServiceSlices returns a page of the selected Services.
func (g *Gateway) ListServiceSlices(_ context.Context, request *slicev1.ListServiceSlicesRequest) (*slicev1.ListServiceSlicesResponse, error) {
	page, next, err := pageOf(g, request, g.Services, func(service *slicev1.ServiceSlices) bool {
		return strings.HasPrefix(service.GetName(), request.GetParent())
	})
	return &slicev1.ListServiceSlicesResponse{ServiceSlices: page, NextPageToken: next, Sources: g.Sources, Missing: g.Missing}, err
}

// WatchServiceSlices sends the events of the next of SliceWatches.
func (g *Gateway) WatchServiceSlices(request *slicev1.WatchServiceSlicesRequest, stream grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	return serveWatch(g, request, g.SliceWatches, stream)
}

// PlanServiceSlices returns SlicesPlan.
func (g *Gateway) PlanServiceSlices(_ context.Context, request *slicev1.PlanServiceSlicesRequest) (*slicev1.PlanServiceSlicesResponse, error) {
	return &slicev1.PlanServiceSlicesResponse{Plan: g.SlicesPlan}, g.take(request)
}

// ReconcileServiceSlices returns Reconciled.
func (g *Gateway) ReconcileServiceSlices(_ context.Context, request *slicev1.ReconcileServiceSlicesRequest) (*slicev1.ReconcileServiceSlicesResponse, error) {
	return &slicev1.ReconcileServiceSlicesResponse{Plan: g.Reconciled}, g.take(request)
}

// ExplainEndpoint returns EndpointExplanation.
func (g *Gateway) ExplainEndpoint(_ context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	return g.EndpointExplanation, g.take(request)
}

// ListDifferences returns the next of Differences.
func (g *Gateway) ListDifferences(_ context.Context, request *shadowv1.ListDifferencesRequest) (*shadowv1.ListDifferencesResponse, error) {
	if err := g.take(request); err != nil {
		return nil, err
	}
	asked := len(RequestsOf[*shadowv1.ListDifferencesRequest](g))
	return g.Differences[min(asked, len(g.Differences))-1], nil
}

// ListShards returns a page of the selected Shards.
func (g *Gateway) ListShards(_ context.Context, request *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	page, next, err := pageOf(g, request, g.Shards, func(shard *statusv1.ShardStatus) bool {
		return isSelected(request.GetServices(), shard.GetService())
	})
	return &statusv1.ListShardsResponse{Shards: page, NextPageToken: next, Sources: g.Sources, Missing: g.Missing}, err
}

// ListDecisions returns a page of the selected Decisions.
func (g *Gateway) ListDecisions(_ context.Context, request *statusv1.ListDecisionsRequest) (*statusv1.ListDecisionsResponse, error) {
	page, next, err := pageOf(g, request, g.Decisions, func(decision *statusv1.Decision) bool {
		return isSelected(request.GetServices(), decision.GetService()) && isSelected(request.GetActions(), decision.GetAction()) &&
			(len(request.GetResources()) == 0 || slices.ContainsFunc(decision.GetResources(), func(of string) bool { return slices.Contains(request.GetResources(), of) }))
	})
	return &statusv1.ListDecisionsResponse{Decisions: page, NextPageToken: next, Sources: g.Sources, Missing: g.Missing}, err
}

// WatchDecisions sends the events of the next of DecisionWatches.
func (g *Gateway) WatchDecisions(request *statusv1.WatchDecisionsRequest, stream grpc.ServerStreamingServer[statusv1.WatchDecisionsResponse]) error {
	return serveWatch(g, request, g.DecisionWatches, stream)
}
