// Package slices is `trivet slices`: the EndpointSlices of Services, and the plans and writes of
// one Service.
//
// Not healthy, with exit code 1, is a Service whose last sync failed or whose slices another writer
// keeps reverting. Package list has the rules of lists and watches; `trivet slices plan` has the
// exit codes of kubectl diff.
package slices

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// NewCommand returns `trivet slices`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var namespace string
	command := list.NewCommand(streams, list.Command[*slicev1.ServiceSlices]{
		Flags: &flags,
		Use:   "slices [NAMESPACE/NAME]",
		Short: "Show the EndpointSlices of Services",
		Long: `Show the EndpointSlices of Services: the ready endpoints, the number of slices and the smallest possible
number, their fill, and the age, the trigger and the writes of the last sync: +created ~updated -deleted.

  kept       The slices are up to date.
  failing    The last sync failed.
  contended  Another writer keeps reverting the slices.
  unmanaged  The Service has no selector or is an ExternalName.`,
		ExitOne: "A Service is failing or contended.",
		Example: `  trivet slices
  trivet slices -n shop -w
  trivet slices shop/web -o json
  trivet slices plan shop/web`,
		NotChanges: "Syncs without writes are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			command.Flags().StringVarP(&namespace, "namespace", "n", "", "Only Services of this namespace, which NAME then omits.")
		},
		Validate:  func() []error { return []error{checkNamespace(namespace)} },
		ParseName: func(text string) (string, error) { return ParseName(text, namespace) },
		ShortName: func(service *slicev1.ServiceSlices) string {
			return strings.TrimPrefix(ShortName(service.GetName()), namespace+"/")
		},
		Kind: kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*slicev1.ServiceSlices] {
			return source{client: gatewayv1.NewSliceServiceClient(conn), parent: parent(flags.Name, namespace)}
		},
	})
	command.AddCommand(newPlanCommand(streams), newReconcileCommand(streams))
	return command
}

// parent returns the namespace to ask for, which is enough to watch one Service; empty for all.
func parent(name, namespace string) string {
	if parent, _, found := strings.Cut(name, "/services/"); found {
		return parent
	}
	if namespace != "" {
		return "namespaces/" + namespace
	}
	return ""
}

func checkNamespace(namespace string) error {
	if namespace == "" || isLabel(namespace) && !strings.HasPrefix(namespace, "-") {
		return nil
	}
	return fmt.Errorf("--namespace=%q: must be lower-case letters, digits and -, at most 63", namespace)
}

func isLabel(text string) bool { return regexp.MustCompile(`^[-a-z0-9]{1,63}$`).MatchString(text) }

// IsPodName reports whether a text is a valid name of a Pod.
func IsPodName(text string) bool {
	return len(text) <= 253 && regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`).MatchString(text)
}

// ParseName returns the API's name for NAMESPACE/NAME, for NAME with the given namespace, or for
// the API's name.
func ParseName(text, within string) (string, error) {
	namespace, name, found := strings.Cut(strings.Replace(strings.TrimPrefix(text, "namespaces/"), "/services/", "/", 1), "/")
	if !found {
		namespace, name = within, text
	}
	switch {
	case namespace == "":
		return "", fmt.Errorf("%q: give NAMESPACE/NAME, or the namespace with -n", text)
	case within != "" && namespace != within:
		return "", fmt.Errorf("%q is not in the namespace of --namespace=%s", text, within)
	case !isLabel(namespace) || !isLabel(name):
		return "", fmt.Errorf("%q is not the name of a Service: NAMESPACE/NAME, of lower-case letters, digits and dashes", text)
	}
	return "namespaces/" + namespace + "/services/" + name, nil
}

// ShortName returns NAMESPACE/NAME for the API's name of a Service.
func ShortName(name string) string {
	return strings.Replace(strings.TrimPrefix(name, "namespaces/"), "/services/", "/", 1)
}

// pageSize is the gateway's limit, because each page costs one call to each replica.
const pageSize = 1000

type source struct {
	list.NoNotes

	client gatewayv1.SliceServiceClient
	parent string
}

func (s source) Get(ctx context.Context, name string) (*slicev1.ServiceSlices, proto.Message, error) {
	response, err := s.client.GetServiceSlices(ctx, &gatewayv1.GetServiceSlicesRequest{Name: name})
	return response.GetServiceSlices(), response, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*slicev1.ServiceSlices], error) {
	response, err := s.client.ListServiceSlices(ctx, &gatewayv1.ListServiceSlicesRequest{Parent: s.parent, PageSize: pageSize, PageToken: token})
	return list.Page[*slicev1.ServiceSlices]{
		Items: response.GetServiceSlices(), NextToken: response.GetNextPageToken(), Missing: response.GetMissing(),
	}, err
}

func (source) Response(all list.Page[*slicev1.ServiceSlices]) proto.Message {
	return &gatewayv1.ListServiceSlicesResponse{ServiceSlices: all.Items, Missing: all.Missing}
}

func (s source) Watch(ctx context.Context) (list.Receive[*slicev1.ServiceSlices], error) {
	stream, err := s.client.WatchServiceSlices(ctx, &gatewayv1.WatchServiceSlicesRequest{Parent: s.parent})
	return list.ReceiveFrom(stream, err, func(response *gatewayv1.WatchServiceSlicesResponse) list.Event[*slicev1.ServiceSlices] {
		return list.Event[*slicev1.ServiceSlices]{
			Type: list.EventTypeOf(response.GetType()), Item: response.GetServiceSlices(), Missing: response.GetMissing(), Message: response,
		}
	})
}
