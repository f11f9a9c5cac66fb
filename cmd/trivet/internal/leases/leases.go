// Package leases is `trivet leases`: the sessions of holders and the state of their Lease objects.
//
// Not healthy, with exit code 1, is an expired session, a session with a duplicate, and a session
// whose object could not be written [failureLimit] times in a row. A suspect session may recover,
// and without a Node no object is written. Package list has the rules of lists and watches.
package leases

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// NewCommand returns `trivet leases`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var namespace, state string
	return list.NewCommand(streams, list.Command[*leasev1.Lease]{
		Flags: &flags,
		Use:   "leases [NAMESPACE/NAME]",
		Short: "Show the sessions of holders and their Lease objects",
		Long: `Show the sessions of holders at leasesvc and the state of their Lease objects.

A session is alive while its heartbeats are in time, suspect when some are missing, and expired after its
deadline. WRITTEN is the age of the last write of the object, or its problem. NEXT-WRITE is the time of the
next write, RENEW-AGE the age of the renewTime in the object. DUPLICATE is another live holder of the same
name; its heartbeats are rejected. A watch shows "live" as the last beat of an alive session, because it
gets no event for a single beat.`,
		ExitOne: fmt.Sprintf("A session is expired or has a duplicate, or its object could not be written %d times in a row.", failureLimit),
		Example: `  trivet leases
  trivet leases kube-node-lease/node-7 -o wide
  trivet leases -n kube-node-lease --state expired
  trivet leases -w
  trivet leases -o json | jq -r '.leases[] | select(.write.failures > 0) | .write.lastError'`,
		NotChanges: "Beats and successful writes are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringVarP(&namespace, "namespace", "n", "", "Only sessions with Lease objects in this namespace, which NAME then omits.")
			fs.StringVar(&state, "state", "", "Only sessions in this state: "+strings.Join(stateWords(), ", ")+".")
			client.CompleteFlag(command, "state", stateWords()...)
		},
		Filters: []string{"state"},
		Validate: func() []error {
			var problems []error
			if namespace != "" && !isNamespace(namespace) {
				problems = append(problems, fmt.Errorf("--namespace=%q: must be lower-case letters, digits and -, at most 63", namespace))
			}
			if state != "" {
				problems = append(problems, client.OneOf("--state", state, stateWords()...))
			}
			return problems
		},
		ParseName: func(text string) (string, error) {
			name, err := parseName(text, namespace)
			if err == nil {
				namespace, _ = splitName(name) // the list, the watch and the columns are of one namespace
			}
			return name, err
		},
		ShortName: func(lease *leasev1.Lease) string {
			leaseNamespace, name := splitName(lease.GetName())
			if leaseNamespace == namespace {
				return name
			}
			return leaseNamespace + "/" + name
		},
		Kind: func() list.Kind[*leasev1.Lease] { return kind(namespace != "") },
		Source: func(conn grpc.ClientConnInterface) list.Source[*leasev1.Lease] {
			s := source{client: gatewayv1.NewNodeServiceClient(conn), state: stateOf(state)}
			if namespace != "" {
				s.parent = "namespaces/" + namespace
			}
			return s
		},
		Selects: func(lease *leasev1.Lease) bool { return state == "" || state == word(lease.GetState()) },
	})
}

// parseName returns the API's name for NAMESPACE/NAME, for NAME with the given namespace, or for
// the API's name.
func parseName(text, within string) (string, error) {
	namespace, name, found := strings.Cut(text, "/")
	if strings.HasPrefix(text, "namespaces/") {
		namespace, name = splitName(text)
	} else if !found {
		namespace, name = within, text
	}
	switch {
	case namespace == "":
		return "", fmt.Errorf("%q: give NAMESPACE/NAME, or the namespace with -n", text)
	case namespace != cmp.Or(within, namespace):
		return "", fmt.Errorf("%q is not in the namespace of --namespace=%s", text, within)
	case !isNamespace(namespace) || !regexp.MustCompile(`^[-a-z0-9.]{1,253}$`).MatchString(name):
		return "", fmt.Errorf("%q is not the name of a Lease: NAMESPACE/NAME, of lower-case letters, digits, dots and dashes", text)
	}
	return "namespaces/" + namespace + "/leases/" + name, nil
}

func isNamespace(text string) bool {
	return regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,62}$`).MatchString(text)
}

// splitName returns the parts of the API's name.
func splitName(name string) (namespace, lease string) {
	namespace, lease, _ = strings.Cut(strings.TrimPrefix(name, "namespaces/"), "/leases/")
	return namespace, lease
}

// pageSize is the gateway's limit, because each page costs one call to each replica.
const pageSize = 5000

type source struct {
	list.NoNotes

	client gatewayv1.NodeServiceClient
	parent string
	state  leasev1.Lease_State
}

func (s source) Get(ctx context.Context, name string) (*leasev1.Lease, proto.Message, error) {
	response, err := s.client.GetLease(ctx, &gatewayv1.GetLeaseRequest{Name: name})
	return response.GetLease(), response, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*leasev1.Lease], error) {
	response, err := s.client.ListLeases(ctx, &gatewayv1.ListLeasesRequest{
		Parent: s.parent, State: s.state, PageSize: pageSize, PageToken: token,
	})
	return list.Page[*leasev1.Lease]{Items: response.GetLeases(), NextToken: response.GetNextPageToken(), Missing: response.GetMissing()}, err
}

func (source) Response(all list.Page[*leasev1.Lease]) proto.Message {
	return &gatewayv1.ListLeasesResponse{Leases: all.Items, Missing: all.Missing}
}

func (s source) Watch(ctx context.Context) (list.Receive[*leasev1.Lease], error) {
	stream, err := s.client.WatchLeases(ctx, &gatewayv1.WatchLeasesRequest{Parent: s.parent})
	return list.ReceiveFrom(stream, err, func(response *gatewayv1.WatchLeasesResponse) list.Event[*leasev1.Lease] {
		return list.Event[*leasev1.Lease]{
			Type: list.EventTypeOf(response.GetType()), Item: response.GetLease(), Missing: response.GetMissing(), Message: response,
		}
	})
}
