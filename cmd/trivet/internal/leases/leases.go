// Package leases is `trivet leases`: the leases of holders and the state of their Lease objects.
//
// A lease that has expired, that has a duplicate, or whose object could not be written
// [failureLimit] times in a row needs attention, with exit code 1. A suspect lease may recover, and
// without a Node no object is written. Package list has the rules of lists and watches.
package leases

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// NewCommand returns `trivet leases`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var namespace string
	var states []string
	return list.NewCommand(streams, list.Command[*leasev1.Lease]{
		Flags:   &flags,
		Use:     "leases [NAMESPACE/NAME]",
		Aliases: []string{"lease"},
		Short:   "Show the leases of holders and their Lease objects",
		Long: `Show the leases that holders have at leasesvc and the state of their Lease objects in Kubernetes.

A lease is alive while its heartbeats are in time, suspect when some are missing, and expired after its
expire time. WRITTEN is the age of the last write of the object, or its problem. NEXT-WRITE is the time of the
next write, RENEW-AGE the age of the renewTime in the object. DUPLICATE is another live holder of the same
name; its heartbeats are rejected. CONDITIONS are those that the agent last reported. A watch shows "live" as
the last beat of an alive lease, because it gets no event for a single beat.`,
		ExitOne: fmt.Sprintf("A lease has expired or has a duplicate, or its object could not be written %d times in a row.", failureLimit),
		Example: `  trivet leases
  trivet leases kube-node-lease/node-7 -o wide
  trivet leases -n kube-node-lease --state suspect,expired
  trivet leases -w
  trivet leases -o json | jq -r '.leases[] | select(.write.failureCount > 0) | .write.lastError'`,
		NotChanges: "Beats and successful writes are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringVarP(&namespace, "namespace", "n", "", "Only leases with Lease objects in this namespace, which NAME then omits.")
			client.CompleteFlagFrom(command, "namespace", list.Complete(&flags.Flags, func(conn grpc.ClientConnInterface) list.Source[*leasev1.Lease] {
				return source(conn, "", nil)
			}, func(lease *leasev1.Lease) (word, description string) {
				namespace, _ := splitName(lease.GetName())
				return namespace, ""
			}))
			fs.StringSliceVar(&states, "state", nil, "Only leases in these states: "+strings.Join(stateWords(), ", ")+".")
			client.CompleteListFlag(command, "state", stateWords()...)
		},
		Filters: []string{"state"},
		Validate: func() []error {
			var problems []error
			if namespace != "" && !isNamespace(namespace) {
				problems = append(problems, fmt.Errorf("--namespace=%q: must be lower-case letters, digits and -, at most 63", namespace))
			}
			return append(problems, client.EachOf("--state", states, stateWords()...))
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
			parent := ""
			if namespace != "" {
				parent = "namespaces/" + namespace
			}
			return source(conn, parent, printer.EnumsOf[leasev1.Lease_State](states, "STATE_", leasev1.Lease_State_value))
		},
		Selects: func(lease *leasev1.Lease) bool {
			return len(states) == 0 || slices.Contains(states, word(lease.GetState()))
		},
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

// pageSize is the API's limit, because each page costs one call to each replica.
const pageSize = 5000

func source(conn grpc.ClientConnInterface, parent string, states []leasev1.Lease_State) list.Source[*leasev1.Lease] {
	service := leasev1.NewLeaseServiceClient(conn)
	return list.Source[*leasev1.Lease]{
		Get: func(ctx context.Context, name string) (*leasev1.Lease, proto.Message, error) {
			response, err := service.GetLease(ctx, &leasev1.GetLeaseRequest{Name: name})
			return response.GetLease(), response, err
		},
		Page: func(ctx context.Context, token string) (list.Page[*leasev1.Lease], error) {
			response, err := service.ListLeases(ctx, &leasev1.ListLeasesRequest{Parent: parent, States: states, PageSize: pageSize, PageToken: token})
			return list.PageOf(response, response.GetLeases(), err)
		},
		Response: func(all list.Page[*leasev1.Lease]) proto.Message {
			return &leasev1.ListLeasesResponse{Leases: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*leasev1.Lease], error) {
			stream, err := service.WatchLeases(ctx, &leasev1.WatchLeasesRequest{Parent: parent, States: states, ResumeToken: token})
			return watch.ReceiveFrom(stream, err, (*leasev1.WatchLeasesResponse).GetLease)
		},
	}
}
