package nodes

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

// source asks the gateway for Nodes.
type source struct {
	client gatewayv1.NodeServiceClient
	zone   string
	health leasev1.NodeHealth_Health
}

var _ list.Source[*leasev1.NodeHealth] = source{}

func (s source) Get(ctx context.Context, name string) (*leasev1.NodeHealth, proto.Message, error) {
	response, err := s.client.GetNodeHealth(ctx, &gatewayv1.GetNodeHealthRequest{Name: name})
	return response.GetNode(), response, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*leasev1.NodeHealth], error) {
	response, err := s.client.ListNodeHealth(ctx, &gatewayv1.ListNodeHealthRequest{
		Health: s.health, Zone: s.zone, PageSize: pageSize, PageToken: token,
	})
	return list.Page[*leasev1.NodeHealth]{Items: response.GetNodes(), Next: response.GetNextPageToken(), Missing: response.GetMissing()}, err
}

func (source) Answer(list list.Page[*leasev1.NodeHealth]) proto.Message {
	return &gatewayv1.ListNodeHealthResponse{Nodes: list.Items, Missing: list.Missing}
}

func (s source) Watch(ctx context.Context) (func() (list.Event[*leasev1.NodeHealth], error), error) {
	stream, err := s.client.WatchNodeHealth(ctx, &gatewayv1.WatchNodeHealthRequest{Zone: s.zone})
	if err != nil {
		return nil, err
	}
	return func() (list.Event[*leasev1.NodeHealth], error) {
		response, err := stream.Recv()
		return list.Event[*leasev1.NodeHealth]{
			Type: list.TypeOf(response.GetType()), Item: response.GetNode(), Missing: response.GetMissing(), Message: response,
		}, err
	}, nil
}

// connect gives a source over a connection of its own, and what closes it.
func connect(flags *client.Flags) (source, func(), error) {
	client, leave, err := client.Client(flags, gatewayv1.NewNodeServiceClient)
	return source{client: client}, leave, err
}
