package slices

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// pageSize is the largest that the gateway gives, because every page costs a question to each replica.
const pageSize = 1000

// source asks the gateway for Services with their slices.
type source struct {
	client gatewayv1.SliceServiceClient
	parent string
}

var _ list.Source[*slicev1.ServiceSlices] = source{}

func (s source) Get(ctx context.Context, name string) (*slicev1.ServiceSlices, proto.Message, error) {
	response, err := s.client.GetServiceSlices(ctx, &gatewayv1.GetServiceSlicesRequest{Name: name})
	return response.GetServiceSlices(), response, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*slicev1.ServiceSlices], error) {
	response, err := s.client.ListServiceSlices(ctx, &gatewayv1.ListServiceSlicesRequest{Parent: s.parent, PageSize: pageSize, PageToken: token})
	return list.Page[*slicev1.ServiceSlices]{
		Items: response.GetServiceSlices(), Next: response.GetNextPageToken(), Missing: response.GetMissing(),
	}, err
}

func (source) Answer(list list.Page[*slicev1.ServiceSlices]) proto.Message {
	return &gatewayv1.ListServiceSlicesResponse{ServiceSlices: list.Items, Missing: list.Missing}
}

func (s source) Watch(ctx context.Context) (func() (list.Event[*slicev1.ServiceSlices], error), error) {
	stream, err := s.client.WatchServiceSlices(ctx, &gatewayv1.WatchServiceSlicesRequest{Parent: s.parent})
	if err != nil {
		return nil, err
	}
	return func() (list.Event[*slicev1.ServiceSlices], error) {
		response, err := stream.Recv()
		return list.Event[*slicev1.ServiceSlices]{
			Type: list.TypeOf(response.GetType()), Item: response.GetServiceSlices(), Missing: response.GetMissing(), Message: response,
		}, err
	}, nil
}

// Notes is empty: a list of Services says everything itself.
func (source) Notes(context.Context) []string { return nil }

// connect gives a source over a connection of its own, and what closes it.
func connect(flags *client.Flags) (source, func(), error) {
	client, leave, err := client.Client(flags, gatewayv1.NewSliceServiceClient)
	return source{client: client}, leave, err
}
