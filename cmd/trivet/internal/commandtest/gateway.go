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

// Gateway is a NodeService that says what it is told to. Its fields are not changed while it serves.
type Gateway struct {
	gatewayv1.UnimplementedNodeServiceServer

	// Nodes and Leases are all there are, ordered by name.
	Nodes  []*leasev1.NodeHealth
	Leases []*leasev1.Lease
	// PerPage cuts pages shorter than they are asked for; 0 does not.
	PerPage int
	// Missing is said with every page.
	Missing []*gatewayv1.SourceStatus
	// Zones answers ListZones; nil refuses.
	Zones *gatewayv1.ListZonesResponse
	// Explanation answers every ExplainNodeHealth.
	Explanation *gatewayv1.ExplainNodeHealthResponse
	// Err, if there is one, answers everything else.
	Err error
	// Slices answers SliceService; nil leaves that unserved.
	Slices *Slices
	// Bootstrap answers BootstrapService; nil leaves that unserved.
	Bootstrap *Bootstrap
	// Watches are played one after the other, one for each watch that is opened.
	Watches []Watch

	mu    sync.Mutex // guards asked and opened
	asked []string
	// opened counts watches.
	opened int
}

// Watch is what one watch tells, of either kind.
type Watch struct {
	Nodes  []*gatewayv1.WatchNodeHealthResponse
	Leases []*gatewayv1.WatchLeasesResponse
	// End is the error that ends it; without one it stays open in silence.
	End error
}

// Asked returns the pages that were asked for, in words.
func (g *Gateway) Asked() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.asked)
}

func (g *Gateway) note(words string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, words)
}

// GetNodeHealth implements gatewayv1.NodeServiceServer, as all below do.
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

// ListNodeHealth filters and cuts.
func (g *Gateway) ListNodeHealth(_ context.Context, request *gatewayv1.ListNodeHealthRequest) (*gatewayv1.ListNodeHealthResponse, error) {
	g.note("nodes " + request.GetZone() + " " + request.GetHealth().String() + " " + request.GetPageToken())
	if g.Err != nil {
		return nil, g.Err
	}
	wanted := slices.DeleteFunc(slices.Clone(g.Nodes), func(node *leasev1.NodeHealth) bool {
		return request.GetZone() != "" && node.GetZone() != request.GetZone() || request.GetHealth() != 0 && node.GetHealth() != request.GetHealth()
	})
	page, next := cut(wanted, request.GetPageToken(), g.perPage(request.GetPageSize()))
	return &gatewayv1.ListNodeHealthResponse{Nodes: page, NextPageToken: next, Missing: g.Missing}, nil
}

func (g *Gateway) perPage(asked int32) int {
	if g.PerPage > 0 {
		return g.PerPage
	}
	return int(asked)
}

// cut gives the page behind a token, which is the number of what came before.
func cut[T any](all []T, token string, size int) (page []T, next string) {
	begin, _ := strconv.Atoi(token)
	end := min(begin+size, len(all))
	if end < len(all) {
		next = strconv.Itoa(end)
	}
	return all[begin:end], next
}

// ListLeases filters and cuts.
func (g *Gateway) ListLeases(_ context.Context, request *gatewayv1.ListLeasesRequest) (*gatewayv1.ListLeasesResponse, error) {
	g.note("leases " + request.GetParent() + " " + request.GetState().String() + " " + request.GetPageToken())
	if g.Err != nil {
		return nil, g.Err
	}
	page, next := cut(g.Leases, request.GetPageToken(), g.perPage(request.GetPageSize()))
	return &gatewayv1.ListLeasesResponse{Leases: page, NextPageToken: next, Missing: g.Missing}, nil
}

// GetLease looks a session up.
func (g *Gateway) GetLease(_ context.Context, request *gatewayv1.GetLeaseRequest) (*gatewayv1.GetLeaseResponse, error) {
	for _, lease := range g.Leases {
		if lease.GetName() == request.GetName() {
			return &gatewayv1.GetLeaseResponse{Lease: lease}, nil
		}
	}
	return nil, rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "nobody beats as "+request.GetName())
}

// ListZones says Zones.
func (g *Gateway) ListZones(context.Context, *gatewayv1.ListZonesRequest) (*gatewayv1.ListZonesResponse, error) {
	if g.Zones == nil {
		return nil, rpcerror.New(codes.Unavailable, rpcerror.NotLeaderReason, "nobody holds shard 0")
	}
	return g.Zones, nil
}

// ExplainNodeHealth says Explanation.
func (g *Gateway) ExplainNodeHealth(context.Context, *gatewayv1.ExplainNodeHealthRequest) (*gatewayv1.ExplainNodeHealthResponse, error) {
	return g.Explanation, g.Err
}

// WatchNodeHealth plays the next of Watches.
func (g *Gateway) WatchNodeHealth(_ *gatewayv1.WatchNodeHealthRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchNodeHealthResponse]) error {
	watch, err := g.open()
	if err != nil {
		return err
	}
	return play(watch.Nodes, watch.End, stream)
}

// WatchLeases plays the next of Watches.
func (g *Gateway) WatchLeases(_ *gatewayv1.WatchLeasesRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchLeasesResponse]) error {
	watch, err := g.open()
	if err != nil {
		return err
	}
	return play(watch.Leases, watch.End, stream)
}

func (g *Gateway) open() (Watch, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Err != nil || g.opened == len(g.Watches) {
		return Watch{}, g.Err
	}
	g.opened++
	return g.Watches[g.opened-1], nil
}

func play[T any](events []*T, end error, stream grpc.ServerStreamingServer[T]) error {
	for _, event := range events {
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	if end != nil {
		return end
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// Serve runs the gateway on the real server until the test ends, and returns its address.
func Serve(t testing.TB, gateway *Gateway) string {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("make the gateway: %v", err)
	}
	server.Register(func(r grpc.ServiceRegistrar) {
		gatewayv1.RegisterNodeServiceServer(r, gateway)
		if gateway.Slices != nil {
			gatewayv1.RegisterSliceServiceServer(r, gateway.Slices)
		}
		if gateway.Bootstrap != nil {
			gatewayv1.RegisterBootstrapServiceServer(r, gateway.Bootstrap)
		}
	})
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

// Nowhere is an address at which nobody listens.
func Nowhere(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
