package gateway

import (
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// WatchNodeHealth implements NodeService.
func (s *nodeServer) WatchNodeHealth(request *gatewayv1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchNodeHealthResponse]) error {
	reader := s.nodes.Join(func(node *leasev1.NodeHealth) bool { return request.Zone == "" || node.Zone == request.Zone })
	defer reader.Close()
	return s.follow(wire.Context(), tell(reader,
		func(kind merge.Kind, node *leasev1.NodeHealth) error {
			return wire.Send(&gatewayv1.WatchNodeHealthResponse{Type: nodeTypeOf(kind), Node: node})
		},
		func(missing []*gatewayv1.SourceStatus) error {
			return wire.Send(&gatewayv1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK, Missing: missing})
		},
	))
}

// WatchLeases implements NodeService.
func (s *nodeServer) WatchLeases(request *gatewayv1.WatchLeasesRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchLeasesResponse]) error {
	reader := s.leases.Join(within[*leasev1.Lease](request.Parent))
	defer reader.Close()
	return s.follow(wire.Context(), tell(reader,
		func(kind merge.Kind, lease *leasev1.Lease) error {
			return wire.Send(&gatewayv1.WatchLeasesResponse{Type: leaseTypeOf(kind), Lease: lease})
		},
		func(missing []*gatewayv1.SourceStatus) error {
			return wire.Send(&gatewayv1.WatchLeasesResponse{Type: leasev1.WatchLeasesResponse_TYPE_BOOKMARK, Missing: missing})
		},
	))
}

// isOutdated says whether a replica cannot resume a watch where it was.
func isOutdated(err error) bool { return rpcerror.ReasonOf(err) == versionTooOldReason }

func nodeKindOf(what leasev1.WatchNodeHealthResponse_Type) fanin.Kind {
	switch what {
	case leasev1.WatchNodeHealthResponse_TYPE_ADDED, leasev1.WatchNodeHealthResponse_TYPE_MODIFIED:
		return fanin.Put
	case leasev1.WatchNodeHealthResponse_TYPE_DELETED:
		return fanin.Remove
	case leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK:
		return fanin.Bookmark
	}
	return fanin.Unknown
}

func nodeTypeOf(kind merge.Kind) leasev1.WatchNodeHealthResponse_Type {
	switch kind {
	case merge.Added:
		return leasev1.WatchNodeHealthResponse_TYPE_ADDED
	case merge.Modified:
		return leasev1.WatchNodeHealthResponse_TYPE_MODIFIED
	case merge.Removed:
		return leasev1.WatchNodeHealthResponse_TYPE_DELETED
	}
	return leasev1.WatchNodeHealthResponse_TYPE_UNSPECIFIED
}

func leaseKindOf(what leasev1.WatchLeasesResponse_Type) fanin.Kind {
	switch what {
	case leasev1.WatchLeasesResponse_TYPE_ADDED, leasev1.WatchLeasesResponse_TYPE_MODIFIED:
		return fanin.Put
	case leasev1.WatchLeasesResponse_TYPE_DELETED:
		return fanin.Remove
	case leasev1.WatchLeasesResponse_TYPE_BOOKMARK:
		return fanin.Bookmark
	}
	return fanin.Unknown
}

func leaseTypeOf(kind merge.Kind) leasev1.WatchLeasesResponse_Type {
	switch kind {
	case merge.Added:
		return leasev1.WatchLeasesResponse_TYPE_ADDED
	case merge.Modified:
		return leasev1.WatchLeasesResponse_TYPE_MODIFIED
	case merge.Removed:
		return leasev1.WatchLeasesResponse_TYPE_DELETED
	}
	return leasev1.WatchLeasesResponse_TYPE_UNSPECIFIED
}
