package gateway

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/feed"
	"github.com/trivet-dev/trivet/gateway/internal/fleet"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// WatchNodeHealth implements NodeService.
func (s *nodeServer) WatchNodeHealth(request *gatewayv1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchNodeHealthResponse]) error {
	reader := s.nodes.Join(func(node *leasev1.NodeHealth) bool { return request.Zone == "" || node.Zone == request.Zone })
	defer reader.Close()
	return s.follow(wire.Context(), func(ctx context.Context) error {
		taken, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range taken.Events {
			if err := wire.Send(&gatewayv1.WatchNodeHealthResponse{Type: nodeTypeOf(event.Kind), Node: event.Item}); err != nil {
				return err
			}
		}
		if !taken.Bookmark {
			return nil
		}
		return wire.Send(&gatewayv1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK, Missing: taken.Missing})
	})
}

// WatchLeases implements NodeService.
func (s *nodeServer) WatchLeases(request *gatewayv1.WatchLeasesRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchLeasesResponse]) error {
	reader := s.leases.Join(within(request.Parent))
	defer reader.Close()
	return s.follow(wire.Context(), func(ctx context.Context) error {
		taken, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range taken.Events {
			if err := wire.Send(&gatewayv1.WatchLeasesResponse{Type: leaseTypeOf(event.Kind), Lease: event.Item}); err != nil {
				return err
			}
		}
		if !taken.Bookmark {
			return nil
		}
		return wire.Send(&gatewayv1.WatchLeasesResponse{Type: leasev1.WatchLeasesResponse_TYPE_BOOKMARK, Missing: taken.Missing})
	})
}

// within wants the leases of a namespace, or all.
func within(parent string) func(*leasev1.Lease) bool {
	if parent == "" || parent == "namespaces/-" {
		return func(*leasev1.Lease) bool { return true }
	}
	prefix := parent + "/"
	return func(lease *leasev1.Lease) bool { return strings.HasPrefix(lease.Name, prefix) }
}

// follow repeats step until it fails, and says what that means to the caller.
func (s *replicas) follow(ctx context.Context, step func(context.Context) error) error {
	var err error
	for err == nil {
		err = step(ctx)
	}
	var none feed.NoSourceError
	switch {
	case errors.Is(err, feed.ErrStopped):
		return rpcerror.ShuttingDown()
	case ctx.Err() != nil:
		return context.Cause(ctx) // SHUTTING_DOWN when the server ends its streams
	case errors.As(err, &none):
		return s.noneTells(none.Failures)
	}
	return err
}

// isOutdated says whether a replica cannot resume a watch where it was.
func isOutdated(err error) bool { return rpcerror.ReasonOf(err) == versionTooOldReason }

func nodeKindOf(what leasev1.WatchNodeHealthResponse_Type) feed.Kind {
	switch what {
	case leasev1.WatchNodeHealthResponse_TYPE_ADDED, leasev1.WatchNodeHealthResponse_TYPE_MODIFIED:
		return feed.Put
	case leasev1.WatchNodeHealthResponse_TYPE_DELETED:
		return feed.Remove
	case leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK:
		return feed.Bookmark
	}
	return feed.Unknown
}

func nodeTypeOf(kind fleet.Kind) leasev1.WatchNodeHealthResponse_Type {
	switch kind {
	case fleet.Added:
		return leasev1.WatchNodeHealthResponse_TYPE_ADDED
	case fleet.Modified:
		return leasev1.WatchNodeHealthResponse_TYPE_MODIFIED
	case fleet.Removed:
		return leasev1.WatchNodeHealthResponse_TYPE_DELETED
	}
	return leasev1.WatchNodeHealthResponse_TYPE_UNSPECIFIED
}

func leaseKindOf(what leasev1.WatchLeasesResponse_Type) feed.Kind {
	switch what {
	case leasev1.WatchLeasesResponse_TYPE_ADDED, leasev1.WatchLeasesResponse_TYPE_MODIFIED:
		return feed.Put
	case leasev1.WatchLeasesResponse_TYPE_DELETED:
		return feed.Remove
	case leasev1.WatchLeasesResponse_TYPE_BOOKMARK:
		return feed.Bookmark
	}
	return feed.Unknown
}

func leaseTypeOf(kind fleet.Kind) leasev1.WatchLeasesResponse_Type {
	switch kind {
	case fleet.Added:
		return leasev1.WatchLeasesResponse_TYPE_ADDED
	case fleet.Modified:
		return leasev1.WatchLeasesResponse_TYPE_MODIFIED
	case fleet.Removed:
		return leasev1.WatchLeasesResponse_TYPE_DELETED
	}
	return leasev1.WatchLeasesResponse_TYPE_UNSPECIFIED
}
