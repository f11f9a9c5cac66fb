// Package zones is `trivet zones`: how disrupted the zones of a cluster are, and at which rate
// their Nodes get a taint.
//
// A disrupted zone needs attention, with exit code 1. Package list has the rules of lists and
// watches.
package zones

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// NewCommand returns `trivet zones`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	return list.NewCommand(streams, list.Command[*nodev1.Zone]{
		Flags:   &flags,
		Use:     "zones [NAME]",
		Aliases: []string{"zone"},
		Short:   "Show how disrupted the zones of the cluster are",
		Long: `Show how disrupted the zones of the cluster are. A zone is REGION:ZONE by the labels of its Nodes; "none" has
the Nodes without these labels.

  normal              Few Nodes are not ready.
  partial-disruption  So many are not ready that the zone itself may be the cause.
  full-disruption     No Node is ready.

WAITING is the number of Nodes that wait for a NoExecute taint, TAINTS/S how many get one per second. MESSAGE
says why no Node of the zone is marked Unknown.`,
		ExitOne: "A zone is disrupted.",
		Example: `  trivet zones
  trivet zones -w
  trivet zones -o json | jq '.zones[] | {name, waitingNodeCount}'`,
		NotChanges: "Another rate of taints alone is not a change.",
		ParseName:  ParseName,
		ShortName:  shortName,
		Kind:       kind,
		Source:     source,
	})
}

// Complete completes the name of a zone.
func Complete(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, kind, source, shortName)
}

// prefix begins the API's names.
const prefix = "zones/"

// ParseName returns the API's name for a zone's name, with or without "zones/".
func ParseName(text string) (string, error) {
	name := prefix + strings.TrimPrefix(text, prefix)
	if name == prefix || len(name) > 256 || strings.Contains(name[len(prefix):], "/") {
		return "", fmt.Errorf("%q is not the name of a zone: REGION:ZONE or none, at most 250 bytes", text)
	}
	return name, nil
}

func shortName(zone *nodev1.Zone) string { return strings.TrimPrefix(zone.GetName(), prefix) }

// pageSize is the API's limit.
const pageSize = 5000

func source(conn grpc.ClientConnInterface) list.Source[*nodev1.Zone] {
	service := nodev1.NewNodeHealthServiceClient(conn)
	return list.Source[*nodev1.Zone]{
		Get: func(ctx context.Context, name string) (*nodev1.Zone, proto.Message, error) {
			response, err := service.GetZone(ctx, &nodev1.GetZoneRequest{Name: name})
			return response.GetZone(), response, err
		},
		Page: func(ctx context.Context, token string) (list.Page[*nodev1.Zone], error) {
			response, err := service.ListZones(ctx, &nodev1.ListZonesRequest{PageSize: pageSize, PageToken: token})
			return list.PageOf(response, response.GetZones(), err)
		},
		Response: func(all list.Page[*nodev1.Zone]) proto.Message {
			return &nodev1.ListZonesResponse{Zones: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*nodev1.Zone], error) {
			stream, err := service.WatchZones(ctx, &nodev1.WatchZonesRequest{ResumeToken: token})
			return watch.ReceiveFrom(stream, err, (*nodev1.WatchZonesResponse).GetZone)
		},
		Notes: func(ctx context.Context) []string {
			response, err := service.ListZones(ctx, &nodev1.ListZonesRequest{PageSize: 1})
			if err != nil {
				return []string{unavailable(err)}
			}
			return commonNote(response)
		},
	}
}

// Notes returns a note for each zone that is not normal, and one if no Node is marked Unknown
// anywhere. With the API's names of zones, the other zones are omitted.
func Notes(ctx context.Context, conn grpc.ClientConnInterface, only []string) []string {
	service := nodev1.NewNodeHealthServiceClient(conn)
	var notes []string
	for token := ""; ; {
		response, err := service.ListZones(ctx, &nodev1.ListZonesRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return append(notes, unavailable(err))
		}
		if token == "" {
			notes = commonNote(response)
		}
		common := heldEverywhere(response)
		for _, zone := range response.GetZones() {
			if note := zoneNote(zone, common); note != "" && (len(only) == 0 || slices.Contains(only, zone.GetName())) {
				notes = append(notes, note)
			}
		}
		if next := response.GetNextPageToken(); next == "" || next == token {
			return append(notes, printer.Missing(response.GetMissing())...)
		}
		token = response.GetNextPageToken()
	}
}

func unavailable(err error) string {
	return "zones: not available: " + status.Convert(err).Message()
}

// heldEverywhere returns why no Node is marked Unknown in any zone; empty if some may be.
func heldEverywhere(response *nodev1.ListZonesResponse) string {
	return printer.ConditionMessage(response.GetConditions(), "MarkingSuspended", metav1.Condition_STATUS_TRUE)
}

func commonNote(response *nodev1.ListZonesResponse) []string {
	if cause := heldEverywhere(response); cause != "" {
		return []string{"no Node is marked Unknown: " + cause}
	}
	return nil
}

// zoneNote describes a zone that is not normal. It omits a cause that applies to all zones, because
// there may be many.
func zoneNote(zone *nodev1.Zone, common string) string {
	cause := held(zone)
	if cause == common {
		cause = ""
	}
	if !isDisrupted(zone) && zone.GetWaitingNodeCount() == 0 && cause == "" {
		return ""
	}
	disruption := ""
	if isDisrupted(zone) {
		disruption = strings.ReplaceAll(state(zone), "-", " ") + ", "
	}
	note := fmt.Sprintf("zone %s: %s%d of %s not ready", shortName(zone), disruption, zone.GetNotReadyNodeCount(), printer.Count(int(zone.GetNodeCount()), "node"))
	if waiting := zone.GetWaitingNodeCount(); waiting > 0 {
		note += fmt.Sprintf(", %d waiting for a taint at %s per second", waiting, rate(zone))
	}
	if cause != "" {
		note += "; no Node of it is marked Unknown: " + cause
	}
	return note
}

func held(zone *nodev1.Zone) string {
	return printer.ConditionMessage(zone.GetConditions(), "MarkingSuspended", metav1.Condition_STATUS_TRUE)
}

func state(zone *nodev1.Zone) string { return printer.EnumWord(zone.GetState(), "STATE_") }

func rate(zone *nodev1.Zone) string {
	return strconv.FormatFloat(zone.GetTaintsPerSecond(), 'g', 3, 64)
}

func isDisrupted(zone *nodev1.Zone) bool {
	return zone.GetState() == nodev1.Zone_STATE_PARTIAL_DISRUPTION || zone.GetState() == nodev1.Zone_STATE_FULL_DISRUPTION
}

func kind() list.Kind[*nodev1.Zone] {
	return list.Kind[*nodev1.Zone]{
		Noun: "zone",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "STATE", State: true, MinWidth: len("partial-disruption")}, {Title: "NODES"}, {Title: "NOT-READY"},
			{Title: "WAITING"}, {Title: "TAINTS/S"}, {Title: "EPOCH", Wide: true}, {Title: "REPLICA", Wide: true}, {Title: "MESSAGE"},
		},
		Row:             row,
		State:           state,
		Severity:        severity,
		Problem:         state,
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
	}
}

func severity(zone *nodev1.Zone) list.Severity {
	switch {
	case isDisrupted(zone):
		return list.Critical
	case zone.GetState() != nodev1.Zone_STATE_NORMAL, held(zone) != "":
		return list.Warning
	default:
		return list.Fine
	}
}

func row(_ time.Time, zone *nodev1.Zone) []printer.Cell {
	_, epoch, replica := printer.Owner(zone.GetOwner())
	return []printer.Cell{
		{Text: shortName(zone)}, {Text: state(zone), Style: severity(zone).Style()}, {Text: fmt.Sprint(zone.GetNodeCount())},
		{Text: fmt.Sprint(zone.GetNotReadyNodeCount())}, {Text: fmt.Sprint(zone.GetWaitingNodeCount())}, {Text: rate(zone)},
		{Text: epoch}, {Text: replica}, {Text: held(zone)},
	}
}

func summary(zones []*nodev1.Zone) string {
	if len(zones) == 0 {
		return "no zones"
	}
	counts := map[string]int{}
	for _, zone := range zones {
		counts[state(zone)]++
	}
	words := append(printer.EnumWords[nodev1.Zone_State]("STATE_"), "-")
	return printer.Count(len(zones), "zone") + ": " + printer.Counts(counts, words...)
}

// withoutVolatile omits the rate, which changes with the number of Nodes, and the owner.
func withoutVolatile(zone *nodev1.Zone) *nodev1.Zone {
	copied := proto.CloneOf(zone)
	copied.TaintsPerSecond, copied.Owner = 0, nil
	for _, condition := range copied.GetConditions() {
		condition.TransitionTime = nil
	}
	return copied
}
