package api

import (
	"context"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// leaseServer implements LeaseService.
type leaseServer struct {
	leasev1.UnimplementedLeaseServiceServer

	server *Server
}

func (s *leaseServer) GetLease(ctx context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	return s.server.GetLease(ctx, request)
}

func (s *leaseServer) ListLeases(ctx context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	return s.server.ListLeases(ctx, request)
}

func (s *leaseServer) WatchLeases(request *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	return s.server.WatchLeases(request, stream)
}

func (s *leaseServer) register(registrar grpc.ServiceRegistrar) {
	leasev1.RegisterLeaseServiceServer(registrar, s)
}
