// Package apiservers is `trivet apiservers`: the known kube-apiservers, and which of them are
// endpoints.
//
// Not healthy, with exit code 1, is a kube-apiserver that is not ready or whose entry has a
// problem, and an empty list. Package list has the rules of lists and watches.
package apiservers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NewCommand returns `trivet apiservers`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	return list.NewCommand(streams, list.Command[*bootstrapv1.APIServer]{
		Flags: &flags,
		Use:   "apiservers [ADDRESS]",
		Short: "Show the kube-apiservers, and which of them are endpoints",
		Long: `Show the known kube-apiservers: the last result of /readyz, whether they are endpoints of the Service
default/kubernetes, and the reason.

SOURCE is "sidecar"; "master-lease", kube-apiserver's own key, with --adopt-master-leases; or "static", with
--static-apiserver-address.`,
		ExitOne: "A kube-apiserver is not ready, its entry has a problem, or none is known.",
		Example: `  trivet apiservers
  trivet apiservers -w
  trivet apiservers -o json | jq -r '.apiservers[] | select(.published) | .address'`,
		NotChanges: "Probes with the same result are not changes.",
		ParseName: func(text string) (string, error) {
			address, err := netip.ParseAddr(strings.TrimPrefix(text, prefix))
			if err != nil {
				return "", fmt.Errorf("%q is not an IP address", text)
			}
			return prefix + address.Unmap().String(), nil
		},
		ShortName: func(server *bootstrapv1.APIServer) string { return server.GetAddress() },
		Kind:      kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.APIServer] {
			return source{client: gatewayv1.NewBootstrapServiceClient(conn)}
		},
	})
}

// prefix begins the API's names.
const prefix = "apiservers/"

type source struct {
	list.NoNotes

	client gatewayv1.BootstrapServiceClient
}

// Get filters the list, which is short; the API has no RPC for one kube-apiserver.
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
	return nil, nil, status.Errorf(codes.NotFound, "kube-apiserver %s is not known; `trivet apiservers` lists the known ones", name)
}

func (s source) Page(ctx context.Context, _ string) (list.Page[*bootstrapv1.APIServer], error) {
	response, err := s.client.ListAPIServers(ctx, &gatewayv1.ListAPIServersRequest{})
	return list.Page[*bootstrapv1.APIServer]{Items: response.GetApiservers()}, err
}

func (source) Response(all list.Page[*bootstrapv1.APIServer]) proto.Message {
	return &gatewayv1.ListAPIServersResponse{Apiservers: all.Items}
}

func (s source) Watch(ctx context.Context) (list.Receive[*bootstrapv1.APIServer], error) {
	stream, err := s.client.WatchAPIServers(ctx, &gatewayv1.WatchAPIServersRequest{})
	if err != nil {
		return nil, err
	}
	return (&eventReader{stream: stream}).next, nil
}

// eventReader converts a stream of whole lists to events: a Put for each item, a Delete for each
// item that disappeared, and a Bookmark with the message.
type eventReader struct {
	stream  grpc.ServerStreamingClient[gatewayv1.WatchAPIServersResponse]
	last    []*bootstrapv1.APIServer
	pending []list.Event[*bootstrapv1.APIServer]
}

func (r *eventReader) next() (list.Event[*bootstrapv1.APIServer], error) {
	if len(r.pending) == 0 {
		response, err := r.stream.Recv()
		if err != nil {
			return list.Event[*bootstrapv1.APIServer]{}, err
		}
		r.addEvents(response)
	}
	event := r.pending[0]
	r.pending = r.pending[1:]
	return event, nil
}

func (r *eventReader) addEvents(response *gatewayv1.WatchAPIServersResponse) {
	for _, server := range response.GetApiservers() {
		r.pending = append(r.pending, list.Event[*bootstrapv1.APIServer]{Type: list.Put, Item: server})
	}
	for _, old := range r.last {
		same := func(server *bootstrapv1.APIServer) bool { return server.GetName() == old.GetName() }
		if !slices.ContainsFunc(response.GetApiservers(), same) {
			r.pending = append(r.pending, list.Event[*bootstrapv1.APIServer]{Type: list.Delete, Item: old})
		}
	}
	r.last = response.GetApiservers()
	r.pending = append(r.pending, list.Event[*bootstrapv1.APIServer]{Type: list.Bookmark, Message: response})
}
