// Package nodes is `trivet nodes`: the health of Nodes as leasesvc determines it.
//
// A Node that is not ready, silent or marked Unknown needs attention, with exit code 1. A suspect
// Node may beat again, and a starting one has time left. Package list has the rules of lists and
// watches.
package nodes

import (
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
	"github.com/trivet-dev/trivet/cmd/trivet/internal/zones"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// NewCommand returns `trivet nodes`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var only []string
	var healths []string
	return list.NewCommand(streams, list.Command[*nodev1.NodeHealth]{
		Flags:   &flags,
		Use:     "nodes [NAME]",
		Aliases: []string{"node", "no"},
		Short:   "Show the health of Nodes",
		Long: `Show the health of the Nodes of a cluster, as leasesvc determines it:

  starting   It has no Ready condition yet, within its startup grace period.
  ready      It gives signals and reports ready.
  not-ready  It gives signals and reports not ready.
  suspect    Signals are missing; its grace period has not passed.
  silent     Its grace period has passed and it is not marked Unknown; MESSAGE has the cause of a delay.
  unknown    Its conditions were set to Unknown.

SEEN is the age of the last signal of life, or "live" where only missing signals are reported. SIGNAL is its
source: the agent, the kubelet, the Lease object or the status of the Node. LEASE is the state of the Node's
lease at leasesvc. With -o wide, AGENT is the mode of the agent, "endpoint" or "probe", or "none", and KUBELET
the age of the kubelet's own last signal. Standard error lists disrupted zones.`,
		ExitOne: "A Node is not-ready, silent or unknown.",
		Example: `  trivet nodes
  trivet nodes --health silent,unknown
  trivet nodes --zone eu-west-1:eu-west-1a -w
  trivet nodes --health silent -o name | xargs -r -n 1 trivet explain node
  trivet nodes -o json | jq -r '.nodes[] | select(any(.conditions[]; .status == "STATUS_TRUE")) | .name'`,
		NotChanges: "Signals of life are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringSliceVar(&only, "zone", nil, "Only Nodes of these zones, as in the column ZONE.")
			client.CompleteListFlagFrom(command, "zone", zones.Complete(&flags.Flags))
			fs.StringSliceVar(&healths, "health", nil, "Only Nodes of these healths: "+strings.Join(healthWords(), ", ")+".")
			client.CompleteListFlag(command, "health", healthWords()...)
		},
		Filters: []string{"zone", "health"},
		Validate: func() []error {
			problems := []error{client.EachOf("--health", healths, healthWords()...)}
			for _, zone := range only {
				if _, err := zones.ParseName(zone); err != nil {
					problems = append(problems, fmt.Errorf("--zone: %w", err))
				}
			}
			return problems
		},
		ParseName: ParseName,
		ShortName: ShortName,
		Kind:      kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*nodev1.NodeHealth] {
			f := filter{healths: printer.EnumsOf[nodev1.NodeHealth_Health](healths, healthPrefix, nodev1.NodeHealth_Health_value)}
			for _, zone := range only {
				name, _ := zones.ParseName(zone) // Validate has checked it
				f.zones = append(f.zones, name)
			}
			return source(conn, f)
		},
		Selects: func(node *nodev1.NodeHealth) bool {
			return len(healths) == 0 || slices.Contains(healths, Word(node.GetHealth()))
		},
	})
}

// Complete completes the name of a Node.
func Complete(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, kind, func(conn grpc.ClientConnInterface) list.Source[*nodev1.NodeHealth] {
		return source(conn, filter{})
	}, ShortName)
}

// ParseName returns the API's name for a Node's name, with or without "nodes/".
func ParseName(text string) (string, error) {
	name := strings.TrimPrefix(text, "nodes/")
	if len(name) > 253 || !regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`).MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a Node: lower-case letters, digits, dots and dashes, at most 253", text)
	}
	return "nodes/" + name, nil
}

// ShortName returns a Node's name in Kubernetes.
func ShortName(node *nodev1.NodeHealth) string { return strings.TrimPrefix(node.GetName(), "nodes/") }

// pageSize is the API's limit, because each page costs one call to each replica.
const pageSize = 5000

// filter selects Nodes; its zero value selects all.
type filter struct {
	zones   []string // the API's names
	healths []nodev1.NodeHealth_Health
}

func source(conn grpc.ClientConnInterface, f filter) list.Source[*nodev1.NodeHealth] {
	service := nodev1.NewNodeHealthServiceClient(conn)
	return list.Source[*nodev1.NodeHealth]{
		Get: func(ctx context.Context, name string) (*nodev1.NodeHealth, proto.Message, error) {
			response, err := service.GetNodeHealth(ctx, &nodev1.GetNodeHealthRequest{Name: name})
			return response.GetNode(), response, err
		},
		Page: func(ctx context.Context, token string) (list.Page[*nodev1.NodeHealth], error) {
			response, err := service.ListNodeHealth(ctx, &nodev1.ListNodeHealthRequest{
				Healths: f.healths, Zones: f.zones, PageSize: pageSize, PageToken: token,
			})
			return list.PageOf(response, response.GetNodes(), err)
		},
		Response: func(all list.Page[*nodev1.NodeHealth]) proto.Message {
			return &nodev1.ListNodeHealthResponse{Nodes: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*nodev1.NodeHealth], error) {
			stream, err := service.WatchNodeHealth(ctx, &nodev1.WatchNodeHealthRequest{ResumeToken: token, Healths: f.healths, Zones: f.zones})
			return watch.ReceiveFrom(stream, err, (*nodev1.WatchNodeHealthResponse).GetNode)
		},
		Notes: func(ctx context.Context) []string { return zones.Notes(ctx, conn, f.zones) },
	}
}
