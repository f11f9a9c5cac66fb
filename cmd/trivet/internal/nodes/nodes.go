// Package nodes is `trivet nodes`: the health of Nodes as leasesvc determines it.
//
// Not healthy, with exit code 1, is a Node that is not ready, silent or marked Unknown. A suspect
// Node may beat again, and a starting one has time left. Package list has the rules of lists and
// watches.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// NewCommand returns `trivet nodes`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var zone, health string
	return list.NewCommand(streams, list.Command[*leasev1.NodeHealth]{
		Flags: &flags,
		Use:   "nodes [NAME]",
		Short: "Show the health of Nodes",
		Long: `Show the health of the Nodes of a cluster, as leasesvc determines it:

  starting   It has no Ready condition yet, within its startup grace period.
  ready      It is alive and reports ready.
  not-ready  It is alive and reports not ready.
  suspect    Signs of life are missing; its grace period has not passed.
  silent     Its grace period has passed and it is not marked Unknown; REASON has the cause of a delay.
  unknown    Its conditions were set to Unknown.

SEEN is the age of the last sign of life, or "live" where only the end of the signs is reported. Standard
error lists disrupted zones.`,
		ExitOne: "A Node is not-ready, silent or unknown.",
		Example: `  trivet nodes
  trivet nodes --health unknown
  trivet nodes --zone eu-west-1:eu-west-1a -w
  trivet nodes --health silent -o name | xargs -n 1 trivet explain node
  trivet nodes -o json | jq -r '.nodes[] | select(.heldBy != "") | .name'`,
		NotChanges: "Signs of life are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringVar(&zone, "zone", "", "Only Nodes of this zone, as in the column ZONE.")
			fs.StringVar(&health, "health", "", "Only Nodes of this health: "+strings.Join(healthWords(), ", ")+".")
			client.CompleteFlag(command, "health", healthWords()...)
		},
		Filters: []string{"zone", "health"},
		Validate: func() []error {
			var problems []error
			if health != "" {
				problems = append(problems, client.OneOf("--health", health, healthWords()...))
			}
			if len(zone) > 256 {
				problems = append(problems, errors.New("--zone: longer than 256 bytes, the limit of a zone's name"))
			}
			return problems
		},
		ParseName: ParseName,
		ShortName: ShortName,
		Kind:      kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*leasev1.NodeHealth] {
			return source{client: gatewayv1.NewNodeServiceClient(conn), zone: zone, health: healthOf(health)}
		},
		Selects: func(node *leasev1.NodeHealth) bool { return health == "" || health == Word(node.GetHealth()) },
	})
}

// Complete completes the name of a Node.
func Complete(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, kind, func(conn grpc.ClientConnInterface) list.Source[*leasev1.NodeHealth] {
		return source{client: gatewayv1.NewNodeServiceClient(conn)}
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
func ShortName(node *leasev1.NodeHealth) string { return strings.TrimPrefix(node.GetName(), "nodes/") }

// pageSize is the gateway's limit, because each page costs one call to each replica.
const pageSize = 5000

type source struct {
	client gatewayv1.NodeServiceClient
	zone   string
	health leasev1.NodeHealth_Health
}

func (s source) Get(ctx context.Context, name string) (*leasev1.NodeHealth, proto.Message, error) {
	response, err := s.client.GetNodeHealth(ctx, &gatewayv1.GetNodeHealthRequest{Name: name})
	return response.GetNode(), response, err
}

func (s source) Page(ctx context.Context, token string) (list.Page[*leasev1.NodeHealth], error) {
	response, err := s.client.ListNodeHealth(ctx, &gatewayv1.ListNodeHealthRequest{
		Health: s.health, Zone: s.zone, PageSize: pageSize, PageToken: token,
	})
	return list.Page[*leasev1.NodeHealth]{Items: response.GetNodes(), NextToken: response.GetNextPageToken(), Missing: response.GetMissing()}, err
}

func (source) Response(all list.Page[*leasev1.NodeHealth]) proto.Message {
	return &gatewayv1.ListNodeHealthResponse{Nodes: all.Items, Missing: all.Missing}
}

func (s source) Watch(ctx context.Context) (list.Receive[*leasev1.NodeHealth], error) {
	stream, err := s.client.WatchNodeHealth(ctx, &gatewayv1.WatchNodeHealthRequest{Zone: s.zone})
	return list.ReceiveFrom(stream, err, func(response *gatewayv1.WatchNodeHealthResponse) list.Event[*leasev1.NodeHealth] {
		return list.Event[*leasev1.NodeHealth]{
			Type: list.EventTypeOf(response.GetType()), Item: response.GetNode(), Missing: response.GetMissing(), Message: response,
		}
	})
}

// Notes returns a note for each zone that is not normal, and one if no Node is marked Unknown
// anywhere.
func (s source) Notes(ctx context.Context) []string {
	response, err := s.client.ListZones(ctx, &gatewayv1.ListZonesRequest{})
	if err != nil {
		return []string{"zones: not available: " + status.Convert(err).Message()}
	}
	var notes []string
	if cause := response.GetBlindBy(); cause != "" {
		notes = append(notes, "no Node is marked Unknown: "+cause)
	}
	for _, zone := range response.GetZones() {
		if s.zone != "" && zone.GetName() != s.zone {
			continue
		}
		if note := zoneNote(zone, response.GetBlindBy()); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// zoneNote describes a zone that is not normal. It omits a cause that applies to all zones, because
// there may be many.
func zoneNote(zone *leasev1.Zone, commonCause string) string {
	disruption := map[leasev1.Zone_State]string{
		leasev1.Zone_STATE_PARTIAL_DISRUPTION: "partial disruption, ",
		leasev1.Zone_STATE_FULL_DISRUPTION:    "full disruption, ",
	}[zone.GetState()]
	cause := zone.GetHeldBy()
	if cause == commonCause {
		cause = ""
	}
	if disruption == "" && zone.GetWaiting() == 0 && cause == "" {
		return ""
	}
	name := zone.GetName()
	if name == "" {
		name = "(none)"
	}
	note := fmt.Sprintf("zone %s: %s%d of %s not ready", name, disruption, zone.GetNotReady(), printer.Count(int(zone.GetNodes()), "node"))
	if waiting := zone.GetWaiting(); waiting > 0 {
		note += fmt.Sprintf(", %d waiting for a taint at %s per second", waiting, strconv.FormatFloat(zone.GetTaintRate(), 'g', 3, 64))
	}
	if cause != "" {
		note += "; no Node of it is marked Unknown: " + cause
	}
	return note
}
