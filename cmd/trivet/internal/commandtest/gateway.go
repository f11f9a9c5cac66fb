package commandtest

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// Gateway is a fake of the gateway's NodeService. Its fields must not change while it serves.
type Gateway struct {
	gatewayv1.UnimplementedNodeServiceServer

	// Nodes and Leases are all items, sorted by name.
	Nodes  []*leasev1.NodeHealth
	Leases []*leasev1.Lease
	// PageSize replaces the page size of requests, unless it is 0.
	PageSize int
	// Missing is returned with every page.
	Missing []*gatewayv1.SourceStatus
	// Zones is the answer of ListZones; nil is an error.
	Zones *gatewayv1.ListZonesResponse
	// Explanation is the answer of ExplainNodeHealth.
	Explanation *gatewayv1.ExplainNodeHealthResponse
	// Err, unless nil, is the answer of all other RPCs.
	Err error
	// Slices is the SliceService; nil serves none.
	Slices *Slices
	// Bootstrap is the BootstrapService; nil serves none.
	Bootstrap *Bootstrap
	// Watches has the events of each opened watch in order.
	Watches []Watch

	mu       sync.Mutex // guards the fields below
	requests []string
	opened   int // number of opened watches
}

// Watch has the events of one watch, of either kind.
type Watch struct {
	Nodes  []*gatewayv1.WatchNodeHealthResponse
	Leases []*gatewayv1.WatchLeasesResponse
	// Err ends the watch after the events; nil keeps it open.
	Err error
}

// Requests describes the list requests in order.
func (g *Gateway) Requests() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.requests)
}

func (g *Gateway) record(request string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests = append(g.requests, request)
}

// GetNodeHealth returns one of Nodes.
func (g *Gateway) GetNodeHealth(_ context.Context, request *gatewayv1.GetNodeHealthRequest) (*gatewayv1.GetNodeHealthResponse, error) {
	if g.Err != nil {
		return nil, g.Err
	}
	for _, node := range g.Nodes {
		if node.GetName() == request.GetName() {
			return &gatewayv1.GetNodeHealthResponse{Node: node}, nil
		}
	}
	return nil, rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", "there is no Node "+request.GetName())
}

// ListNodeHealth returns a page of the selected Nodes.
func (g *Gateway) ListNodeHealth(_ context.Context, request *gatewayv1.ListNodeHealthRequest) (*gatewayv1.ListNodeHealthResponse, error) {
	g.record("nodes " + request.GetZone() + " " + request.GetHealth().String() + " " + request.GetPageToken())
	if g.Err != nil {
		return nil, g.Err
	}
	selected := slices.DeleteFunc(slices.Clone(g.Nodes), func(node *leasev1.NodeHealth) bool {
		return request.GetZone() != "" && node.GetZone() != request.GetZone() || request.GetHealth() != 0 && node.GetHealth() != request.GetHealth()
	})
	page, next := pageOf(selected, request.GetPageToken(), g.pageSizeOf(request.GetPageSize()))
	return &gatewayv1.ListNodeHealthResponse{Nodes: page, NextPageToken: next, Missing: g.Missing}, nil
}

func (g *Gateway) pageSizeOf(requested int32) int {
	if g.PageSize > 0 {
		return g.PageSize
	}
	return int(requested)
}

// pageOf returns the page of a token, which is the index of its first item.
func pageOf[T any](all []T, token string, size int) (page []T, next string) {
	begin, _ := strconv.Atoi(token)
	end := min(begin+size, len(all))
	if end < len(all) {
		next = strconv.Itoa(end)
	}
	return all[begin:end], next
}

// ListLeases returns a page of Leases.
func (g *Gateway) ListLeases(_ context.Context, request *gatewayv1.ListLeasesRequest) (*gatewayv1.ListLeasesResponse, error) {
	g.record("leases " + request.GetParent() + " " + request.GetState().String() + " " + request.GetPageToken())
	if g.Err != nil {
		return nil, g.Err
	}
	page, next := pageOf(g.Leases, request.GetPageToken(), g.pageSizeOf(request.GetPageSize()))
	return &gatewayv1.ListLeasesResponse{Leases: page, NextPageToken: next, Missing: g.Missing}, nil
}

// GetLease returns one of Leases.
func (g *Gateway) GetLease(_ context.Context, request *gatewayv1.GetLeaseRequest) (*gatewayv1.GetLeaseResponse, error) {
	for _, lease := range g.Leases {
		if lease.GetName() == request.GetName() {
			return &gatewayv1.GetLeaseResponse{Lease: lease}, nil
		}
	}
	return nil, rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "no session "+request.GetName())
}

// ListZones returns Zones.
func (g *Gateway) ListZones(context.Context, *gatewayv1.ListZonesRequest) (*gatewayv1.ListZonesResponse, error) {
	if g.Zones == nil {
		return nil, rpcerror.New(codes.Unavailable, rpcerror.NotLeaderReason, "shard 0 has no holder")
	}
	return g.Zones, nil
}

// ExplainNodeHealth returns Explanation.
func (g *Gateway) ExplainNodeHealth(context.Context, *gatewayv1.ExplainNodeHealthRequest) (*gatewayv1.ExplainNodeHealthResponse, error) {
	return g.Explanation, g.Err
}

// WatchNodeHealth sends the events of the next of Watches.
func (g *Gateway) WatchNodeHealth(_ *gatewayv1.WatchNodeHealthRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchNodeHealthResponse]) error {
	watch, err := g.nextWatch()
	if err != nil {
		return err
	}
	return sendAll(watch.Nodes, watch.Err, stream)
}

// WatchLeases sends the events of the next of Watches.
func (g *Gateway) WatchLeases(_ *gatewayv1.WatchLeasesRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchLeasesResponse]) error {
	watch, err := g.nextWatch()
	if err != nil {
		return err
	}
	return sendAll(watch.Leases, watch.Err, stream)
}

func (g *Gateway) nextWatch() (Watch, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Err != nil || g.opened == len(g.Watches) {
		return Watch{}, g.Err
	}
	g.opened++
	return g.Watches[g.opened-1], nil
}

func sendAll[T any](events []*T, err error, stream grpc.ServerStreamingServer[T]) error {
	for _, event := range events {
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// Serve serves the gateway until the test ends, and returns its address.
func Serve(t testing.TB, gateway *Gateway) string {
	t.Helper()
	return ServeServices(t, func(r grpc.ServiceRegistrar) {
		gatewayv1.RegisterNodeServiceServer(r, gateway)
		if gateway.Slices != nil {
			gatewayv1.RegisterSliceServiceServer(r, gateway.Slices)
		}
		if gateway.Bootstrap != nil {
			gatewayv1.RegisterBootstrapServiceServer(r, gateway.Bootstrap)
		}
	})
}

// ServeServices serves the registered services on the real gRPC server until the test ends, and
// returns the address.
func ServeServices(t testing.TB, register func(grpc.ServiceRegistrar)) string {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("make the gateway: %v", err)
	}
	server.Register(register)
	listener, err := rpcserver.Listen(cfg)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	return listener.Addr().String()
}

// UnusedAddress returns an address without a listener.
func UnusedAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
