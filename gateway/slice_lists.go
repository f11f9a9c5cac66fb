package gateway

import (
	"context"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// Pages of Services are smaller than those of Nodes, because each has its slices; a replica gives no larger ones.
const (
	defaultSlicesPage = 100
	maxSlicesPage     = 1000
)

// ListServiceSlices implements SliceService.
func (s *sliceServer) ListServiceSlices(ctx context.Context, request *gatewayv1.ListServiceSlicesRequest) (*gatewayv1.ListServiceSlicesResponse, error) {
	size := defaultSlicesPage
	if request.PageSize > 0 {
		size = min(int(request.PageSize), maxSlicesPage)
	}
	page, err := run(ctx, s.replicas, list[*slicev1.ServiceSlices]{
		arguments: "slices\x00" + request.Parent, size: size, token: request.PageToken, shared: true,
		ask: func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]*slicev1.ServiceSlices, string, error) {
			answer, err := slicev1.NewSliceServiceClient(conn).ListServiceSlices(ctx, &slicev1.ListServiceSlicesRequest{
				Parent: request.Parent, PageSize: size, PageToken: token,
			})
			return answer.GetServiceSlices(), answer.GetNextPageToken(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListServiceSlicesResponse{ServiceSlices: page.items, NextPageToken: page.token, Missing: page.missing}, nil
}

// WatchServiceSlices implements SliceService.
func (s *sliceServer) WatchServiceSlices(request *gatewayv1.WatchServiceSlicesRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchServiceSlicesResponse]) error {
	reader := s.slices.Join(within[*slicev1.ServiceSlices](request.Parent))
	defer reader.Close()
	return s.follow(wire.Context(), tell(reader,
		func(kind merge.Kind, service *slicev1.ServiceSlices) error {
			return wire.Send(&gatewayv1.WatchServiceSlicesResponse{Type: sliceTypeOf(kind), ServiceSlices: service})
		},
		func(missing []*gatewayv1.SourceStatus) error {
			return wire.Send(&gatewayv1.WatchServiceSlicesResponse{Type: slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK, Missing: missing})
		},
	))
}

func sliceKindOf(what slicev1.WatchServiceSlicesResponse_Type) fanin.Kind {
	switch what {
	case slicev1.WatchServiceSlicesResponse_TYPE_ADDED, slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED:
		return fanin.Put
	case slicev1.WatchServiceSlicesResponse_TYPE_DELETED:
		return fanin.Remove
	case slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK:
		return fanin.Bookmark
	}
	return fanin.Unknown
}

func sliceTypeOf(kind merge.Kind) slicev1.WatchServiceSlicesResponse_Type {
	switch kind {
	case merge.Added:
		return slicev1.WatchServiceSlicesResponse_TYPE_ADDED
	case merge.Modified:
		return slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED
	case merge.Removed:
		return slicev1.WatchServiceSlicesResponse_TYPE_DELETED
	}
	return slicev1.WatchServiceSlicesResponse_TYPE_UNSPECIFIED
}
