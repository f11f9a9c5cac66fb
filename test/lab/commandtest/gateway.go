package commandtest

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Gateway is a scripted gateway with all services of the real one. It filters by parent, healths,
// zone, codes, states and services, and cuts pages. Its fields must not change while it serves.
type Gateway struct {
	nodev1.UnimplementedNodeHealthServiceServer
	leasev1.UnimplementedLeaseServiceServer
	slicev1.UnimplementedSliceServiceServer
	bootstrapv1.UnimplementedAPIServerServiceServer
	bootstrapv1.UnimplementedFindingServiceServer
	bootstrapv1.UnimplementedRepairServiceServer
	statusv1.UnimplementedStatusServiceServer
	statusv1.UnimplementedDecisionServiceServer
	shadowv1.UnimplementedShadowServiceServer

	// Nodes to Decisions are all items, in the order of the API.
	Nodes      []*nodev1.NodeHealth
	Leases     []*leasev1.Lease
	Services   []*slicev1.ServiceSlices
	APIServers []*bootstrapv1.APIServer
	Findings   []*bootstrapv1.Finding
	Plans      []*bootstrapv1.RepairPlan
	Repairs    []*bootstrapv1.Repair
	Shards     []*statusv1.ShardStatus
	Decisions  []*statusv1.Decision
	// Differences are the answers of ListDifferences in turn; the last one repeats.
	Differences []*shadowv1.ListDifferencesResponse
	// Zones is the answer of ListZones; nil is an error.
	Zones *nodev1.ListZonesResponse

	// PageSize replaces the page size of requests, unless it is 0.
	PageSize int
	// Sources and Missing are returned with every page.
	Sources []*metav1.Source
	Missing []*metav1.MissingPart
	// Err, unless nil, is the answer of all RPCs but ListZones.
	Err error

	// NodeExplanation to Reconciled are the answers of their RPCs.
	NodeExplanation     *nodev1.ExplainNodeHealthResponse
	EndpointExplanation *slicev1.ExplainEndpointResponse
	FindingExplanation  *bootstrapv1.ExplainFindingResponse
	SlicesPlan          *metav1.Plan
	Reconciled          *metav1.Plan
	// Plan is the answer of CreateRepairPlan, and Applied of ApplyRepairPlan.
	Plan    *bootstrapv1.RepairPlan
	Applied *bootstrapv1.Repair
	// ApplyErrs are the answers of the first calls of ApplyRepairPlan.
	ApplyErrs []error

	// NodeWatches to DecisionWatches have the events of each opened watch in order.
	NodeWatches      []Watch[nodev1.WatchNodeHealthResponse]
	ZoneWatches      []Watch[nodev1.WatchZonesResponse]
	LeaseWatches     []Watch[leasev1.WatchLeasesResponse]
	SliceWatches     []Watch[slicev1.WatchServiceSlicesResponse]
	APIServerWatches []Watch[bootstrapv1.WatchAPIServersResponse]
	FindingWatches   []Watch[bootstrapv1.WatchFindingsResponse]
	RepairWatches    []Watch[bootstrapv1.WatchRepairsResponse]
	DecisionWatches  []Watch[statusv1.WatchDecisionsResponse]

	mu       sync.Mutex // guards the fields below
	requests []proto.Message
	opened   int // number of opened watches
}

// Watch has the events of one watch.
type Watch[M any] struct {
	Events []*M
	// Err ends the watch after the events; nil keeps it open.
	Err error
}

// RequestsOf returns the requests of a type, in order.
func RequestsOf[M proto.Message](g *Gateway) []M {
	g.mu.Lock()
	defer g.mu.Unlock()
	var requests []M
	for _, request := range g.requests {
		if typed, ok := request.(M); ok {
			requests = append(requests, typed)
		}
	}
	return requests
}

func (g *Gateway) record(request proto.Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests = append(g.requests, proto.Clone(request))
}

// take records a request and returns the scripted error.
func (g *Gateway) take(request proto.Message) error {
	g.record(request)
	return g.Err
}

type listRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// pageOf records a request and returns its page of the selected items. A token is the index of the
// first item.
func pageOf[T any](g *Gateway, request listRequest, all []T, selects func(T) bool) (page []T, next string, err error) {
	if err := g.take(request); err != nil {
		return nil, "", err
	}
	selected := slices.DeleteFunc(slices.Clone(all), func(item T) bool { return !selects(item) })
	size := int(request.GetPageSize())
	if g.PageSize > 0 {
		size = g.PageSize
	}
	begin, _ := strconv.Atoi(request.GetPageToken())
	end := min(begin+size, len(selected))
	if end < len(selected) {
		next = strconv.Itoa(end)
	}
	return selected[begin:end], next, nil
}

// isSelected reports whether a filter, which selects all if it is empty, selects a value.
func isSelected[E comparable](filter []E, value E) bool {
	return len(filter) == 0 || slices.Contains(filter, value)
}

// get records a request and returns the item with its name.
func get[T interface{ GetName() string }](g *Gateway, request interface {
	proto.Message
	GetName() string
}, items []T, reason rpcerror.Reason) (T, error) {
	var none T
	if err := g.take(request); err != nil {
		return none, err
	}
	for _, item := range items {
		if item.GetName() == request.GetName() {
			return item, nil
		}
	}
	return none, rpcerror.New(codes.NotFound, reason, "there is no "+request.GetName())
}

// serveWatch records a request and sends the events of the next of the watches. Further watches
// end at once.
func serveWatch[M any](g *Gateway, request proto.Message, watches []Watch[M], stream grpc.ServerStreamingServer[M]) error {
	if err := g.take(request); err != nil {
		return err
	}
	g.mu.Lock()
	number := g.opened
	g.opened++
	g.mu.Unlock()
	if number >= len(watches) {
		return nil
	}
	for _, event := range watches[number].Events {
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	if watches[number].Err != nil {
		return watches[number].Err
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// Serve serves the gateway until the test ends, and returns its address.
func Serve(t testing.TB, gateway *Gateway) string {
	t.Helper()
	return ServeServices(t, func(r grpc.ServiceRegistrar) {
		nodev1.RegisterNodeHealthServiceServer(r, gateway)
		leasev1.RegisterLeaseServiceServer(r, gateway)
		slicev1.RegisterSliceServiceServer(r, gateway)
		bootstrapv1.RegisterAPIServerServiceServer(r, gateway)
		bootstrapv1.RegisterFindingServiceServer(r, gateway)
		bootstrapv1.RegisterRepairServiceServer(r, gateway)
		statusv1.RegisterStatusServiceServer(r, gateway)
		statusv1.RegisterDecisionServiceServer(r, gateway)
		shadowv1.RegisterShadowServiceServer(r, gateway)
	})
}

// ServeCluster serves a ClusterService until the test ends, and returns the address.
func ServeCluster(t testing.TB, server gatewayv1.ClusterServiceServer) string {
	t.Helper()
	return ServeServices(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, server) })
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
