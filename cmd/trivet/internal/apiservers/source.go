package apiservers

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// source asks the gateway for kube-apiservers.
type source struct {
	client gatewayv1.BootstrapServiceClient
}

var _ list.Source[*bootstrapv1.APIServer] = source{}

// Get looks one up in the list, which is short; the API has no question about one.
func (s source) Get(ctx context.Context, name string) (*bootstrapv1.APIServer, proto.Message, error) {
	response, err := s.client.ListAPIServers(ctx, &gatewayv1.ListAPIServersRequest{})
	if err != nil {
		return nil, nil, err
	}
	for _, server := range response.GetApiservers() {
		if server.GetName() == name {
			return server, server, nil
		}
	}
	return nil, nil, status.Errorf(codes.NotFound, "no kube-apiserver %s is known; `trivet apiservers` lists those that are", name)
}

func (s source) Page(ctx context.Context, _ string) (list.Page[*bootstrapv1.APIServer], error) {
	response, err := s.client.ListAPIServers(ctx, &gatewayv1.ListAPIServersRequest{})
	return list.Page[*bootstrapv1.APIServer]{Items: response.GetApiservers()}, err
}

func (source) Answer(list list.Page[*bootstrapv1.APIServer]) proto.Message {
	return &gatewayv1.ListAPIServersResponse{Apiservers: list.Items}
}

func (s source) Watch(ctx context.Context) (func() (list.Event[*bootstrapv1.APIServer], error), error) {
	stream, err := s.client.WatchAPIServers(ctx, &gatewayv1.WatchAPIServersRequest{})
	if err != nil {
		return nil, err
	}
	lists := &listStream{stream: stream}
	return lists.next, nil
}

// listStream makes events of a stream of whole lists: what each one has, what it does not have any more, and a bookmark, which
// carries the list.
type listStream struct {
	stream  grpc.ServerStreamingClient[gatewayv1.WatchAPIServersResponse]
	told    []*bootstrapv1.APIServer
	pending []list.Event[*bootstrapv1.APIServer]
}

func (l *listStream) next() (list.Event[*bootstrapv1.APIServer], error) {
	if len(l.pending) == 0 {
		response, err := l.stream.Recv()
		if err != nil {
			return list.Event[*bootstrapv1.APIServer]{}, err
		}
		l.take(response)
	}
	event := l.pending[0]
	l.pending = l.pending[1:]
	return event, nil
}

func (l *listStream) take(response *gatewayv1.WatchAPIServersResponse) {
	for _, server := range response.GetApiservers() {
		l.pending = append(l.pending, list.Event[*bootstrapv1.APIServer]{Type: list.Present, Item: server})
	}
	for _, before := range l.told {
		stays := func(server *bootstrapv1.APIServer) bool { return server.GetName() == before.GetName() }
		if !slices.ContainsFunc(response.GetApiservers(), stays) {
			l.pending = append(l.pending, list.Event[*bootstrapv1.APIServer]{Type: list.Deleted, Item: before})
		}
	}
	l.told = response.GetApiservers()
	l.pending = append(l.pending, list.Event[*bootstrapv1.APIServer]{Type: list.Bookmark, Message: response})
}

// Notes is empty: a list of kube-apiservers says everything itself.
func (source) Notes(context.Context) []string { return nil }

// connected gives a source over a connection of its own, and what closes it.
func connected(flags *client.Flags) (list.Source[*bootstrapv1.APIServer], func(), error) {
	client, leave, err := client.Client(flags, gatewayv1.NewBootstrapServiceClient)
	return source{client: client}, leave, err
}
