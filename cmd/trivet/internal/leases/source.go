package leases

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// pageSize is the largest that the gateway gives, because every page costs a question to each replica.
const pageSize = 5000

// source asks the gateway for sessions.
type source struct {
	client gatewayv1.NodeServiceClient
	parent string
	state  leasev1.Lease_State
}

var _ list.Source[*leasev1.Lease] = source{}

func (s source) Get(ctx context.Context, name string) (*leasev1.Lease, proto.Message, error) {
	response, err := s.client.GetLease(ctx, &gatewayv1.GetLeaseRequest{Name: name})
	return response.GetLease(), response, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*leasev1.Lease], error) {
	response, err := s.client.ListLeases(ctx, &gatewayv1.ListLeasesRequest{
		Parent: s.parent, State: s.state, PageSize: pageSize, PageToken: token,
	})
	return list.Page[*leasev1.Lease]{Items: response.GetLeases(), Next: response.GetNextPageToken(), Missing: response.GetMissing()}, err
}

func (source) Answer(list list.Page[*leasev1.Lease]) proto.Message {
	return &gatewayv1.ListLeasesResponse{Leases: list.Items, Missing: list.Missing}
}

func (s source) Watch(ctx context.Context) (func() (list.Event[*leasev1.Lease], error), error) {
	stream, err := s.client.WatchLeases(ctx, &gatewayv1.WatchLeasesRequest{Parent: s.parent})
	if err != nil {
		return nil, err
	}
	return func() (list.Event[*leasev1.Lease], error) {
		response, err := stream.Recv()
		return list.Event[*leasev1.Lease]{
			Type: list.TypeOf(response.GetType()), Item: response.GetLease(), Missing: response.GetMissing(), Message: response,
		}, err
	}, nil
}

// Notes is empty: a list of sessions says everything itself.
func (source) Notes(context.Context) []string { return nil }

// connect gives a source over a connection of its own, and what closes it.
func connect(flags *client.Flags) (source, func(), error) {
	client, leave, err := client.Client(flags, gatewayv1.NewNodeServiceClient)
	return source{client: client}, leave, err
}
