package gateway

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/voice"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// WatchFindings implements BootstrapService.
func (s *bootstrapServer) WatchFindings(_ *gatewayv1.WatchFindingsRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchFindingsResponse]) error {
	reader := s.findings.Join()
	defer reader.Close()
	for {
		taken, err := reader.Next(wire.Context())
		if err != nil {
			return s.watchEnded(wire.Context(), err)
		}
		for _, event := range taken.Events {
			if err := wire.Send(&gatewayv1.WatchFindingsResponse{Type: findingTypeOf(event.Kind), Finding: event.Item}); err != nil {
				return err
			}
		}
		if !taken.Bookmark {
			continue
		}
		bookmark := &gatewayv1.WatchFindingsResponse{Type: bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK}
		if taken.Failure != nil {
			bookmark.Missing = s.unheardOf(taken.Failure)
		}
		if err := wire.Send(bookmark); err != nil {
			return err
		}
	}
}

// WatchAPIServers implements BootstrapService. A list says all, so that one which grows old unnoticed would be worse than none: the
// watch ends when nobody can be asked any more.
func (s *bootstrapServer) WatchAPIServers(_ *gatewayv1.WatchAPIServersRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchAPIServersResponse]) error {
	reader := s.apiservers.Join()
	defer reader.Close()
	var list *bootstrapv1.WatchAPIServersResponse
	for {
		taken, err := reader.Next(wire.Context())
		if err == nil {
			err = taken.Failure
		}
		if err != nil {
			return s.watchEnded(wire.Context(), err)
		}
		for _, event := range taken.Events {
			list = event.Item
		}
		if err := wire.Send(&gatewayv1.WatchAPIServersResponse{Apiservers: list.GetApiservers(), Freshness: list.GetFreshness()}); err != nil {
			return err
		}
	}
}

// watchEnded says what the end of the reading means to the caller.
func (s *bootstrapServer) watchEnded(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, voice.ErrStopped):
		return rpcerror.ShuttingDown()
	case ctx.Err() != nil:
		return context.Cause(ctx) // SHUTTING_DOWN when the server ends its streams
	}
	return s.unheard(err)
}

func findingTypeOf(kind voice.Kind) bootstrapv1.WatchFindingsResponse_Type {
	switch kind {
	case voice.Added:
		return bootstrapv1.WatchFindingsResponse_TYPE_ADDED
	case voice.Modified:
		return bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED
	case voice.Removed:
		return bootstrapv1.WatchFindingsResponse_TYPE_DELETED
	}
	return bootstrapv1.WatchFindingsResponse_TYPE_UNSPECIFIED
}
