// Package apiservers is `trivet apiservers`: the known kube-apiservers, and which of them are
// endpoints.
//
// A kube-apiserver that is not ready or whose entry has a problem needs attention, with exit code
// 1, and so does an empty list. Package list has the rules of lists and watches.
package apiservers

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// NewCommand returns `trivet apiservers`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	return list.NewCommand(streams, list.Command[*bootstrapv1.APIServer]{
		Flags:   &flags,
		Use:     "apiservers [ADDRESS]",
		Aliases: []string{"apiserver"},
		Short:   "Show the kube-apiservers, and which of them are endpoints",
		Long: `Show the known kube-apiservers: the last result of /readyz, whether they are endpoints of the Service
default/kubernetes, and why.

SOURCE is "sidecar"; "master-lease", kube-apiserver's own key, with --adopt-master-leases; or "static", with
--static-apiserver-address.`,
		ExitOne: "A kube-apiserver is not ready, its entry has a problem, or none is known.",
		Example: `  trivet apiservers
  trivet apiservers -w
  trivet apiservers 10.1.0.3 -o wide
  trivet apiservers -o json | jq -r '.apiservers[] | select(.ready | not) | .address'`,
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
		Source:    source,
	})
}

// prefix begins the API's names.
const prefix = "apiservers/"

// pageSize is the API's limit.
const pageSize = 5000

func source(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.APIServer] {
	service := bootstrapv1.NewAPIServerServiceClient(conn)
	return list.Source[*bootstrapv1.APIServer]{
		Get: func(ctx context.Context, name string) (*bootstrapv1.APIServer, proto.Message, error) {
			response, err := service.GetAPIServer(ctx, &bootstrapv1.GetAPIServerRequest{Name: name})
			return response.GetApiserver(), response, err
		},
		Page: func(ctx context.Context, token string) (list.Page[*bootstrapv1.APIServer], error) {
			response, err := service.ListAPIServers(ctx, &bootstrapv1.ListAPIServersRequest{PageSize: pageSize, PageToken: token})
			return list.PageOf(response, response.GetApiservers(), err)
		},
		Response: func(all list.Page[*bootstrapv1.APIServer]) proto.Message {
			return &bootstrapv1.ListAPIServersResponse{Apiservers: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*bootstrapv1.APIServer], error) {
			stream, err := service.WatchAPIServers(ctx, &bootstrapv1.WatchAPIServersRequest{ResumeToken: token})
			return watch.ReceiveFrom(stream, err, (*bootstrapv1.WatchAPIServersResponse).GetApiserver)
		},
	}
}
