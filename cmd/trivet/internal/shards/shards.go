// Package shards is `trivet shards`: which replica leads each shard of each service.
//
// A shard without a leader needs attention, with exit code 1. Package list has the rules of lists.
package shards

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// NewCommand returns `trivet shards`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var services []string
	return list.NewCommand(streams, list.Command[*statusv1.ShardStatus]{
		Flags:   &flags,
		Use:     "shards",
		Aliases: []string{"shard"},
		Short:   "Show which replica leads each shard of each service",
		Long: `Show which replica leads each shard of each service, and where it is reached. EPOCH grows with each leader.
SINCE is the age of the claim, or of the loss of the last leader. MOVE is the move of the shard to another
replica: "waiting" until its turn comes, "draining" while the leader finishes its work.`,
		ExitOne: "A shard has no leader.",
		Example: `  trivet shards
  trivet shards --service leasesvc,slicesvc -o wide
  trivet shards -o json | jq -r '.shards[] | select(.leaderId == "") | .name'`,
		RegisterFlags: func(command *cobra.Command) {
			command.Flags().StringSliceVar(&services, "service", nil, "Only shards of these services: "+strings.Join(serviceWords(), ", ")+".")
			client.CompleteListFlag(command, "service", serviceWords()...)
		},
		Validate: func() []error { return []error{client.EachOf("--service", services, serviceWords()...)} },
		Kind:     kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*statusv1.ShardStatus] {
			return source(conn, services)
		},
	})
}

// serviceWords returns the services that have shards.
func serviceWords() []string { return []string{"leasesvc", "bootstrapsvc", "slicesvc"} }

// pageSize is the API's limit.
const pageSize = 5000

func source(conn grpc.ClientConnInterface, services []string) list.Source[*statusv1.ShardStatus] {
	return list.Source[*statusv1.ShardStatus]{
		Page: func(ctx context.Context, token string) (list.Page[*statusv1.ShardStatus], error) {
			response, err := statusv1.NewStatusServiceClient(conn).ListShards(ctx, &statusv1.ListShardsRequest{
				Services: services, PageSize: pageSize, PageToken: token,
			})
			return list.PageOf(response, response.GetShards(), err)
		},
		Response: func(all list.Page[*statusv1.ShardStatus]) proto.Message {
			return &statusv1.ListShardsResponse{Shards: all.Items, Sources: all.Sources, Missing: all.Missing}
		},
	}
}

func kind() list.Kind[*statusv1.ShardStatus] {
	return list.Kind[*statusv1.ShardStatus]{
		Noun: "shard",
		Columns: []list.Column{
			{Title: "SERVICE"}, {Title: "SHARD"}, {Title: "LEADER", State: true}, {Title: "ADDRESS"}, {Title: "EPOCH"},
			{Title: "SINCE"}, {Title: "REMAINING", Wide: true}, {Title: "MOVE"},
		},
		Row:          row,
		State:        state,
		Severity:     severity,
		Problem:      func(*statusv1.ShardStatus) string { return "no replica leads it" },
		CriticalWord: "without a leader",
		EmptyProblem: "no shard is known: no replica is registered",
		Summary:      summary,
	}
}

func state(shard *statusv1.ShardStatus) string {
	switch {
	case shard.GetLeaderId() == "":
		return "without a leader"
	case shard.GetMove() != nil:
		return "moving"
	default:
		return "led"
	}
}

func severity(shard *statusv1.ShardStatus) list.Severity {
	switch {
	case shard.GetLeaderId() == "":
		return list.Critical
	case shard.GetMove() != nil:
		return list.Warning
	default:
		return list.Fine
	}
}

func row(now time.Time, shard *statusv1.ShardStatus) []printer.Cell {
	leader, since := printer.Cell{Text: shard.GetLeaderId()}, shard.GetAcquireTime()
	if shard.GetLeaderId() == "" {
		leader, since = printer.Cell{Text: "none", Style: printer.Failure}, shard.GetReleaseTime()
	}
	epoch, remaining := "-", "-"
	if shard.GetEpoch() != 0 {
		epoch = fmt.Sprint(shard.GetEpoch())
	}
	if shard.GetRemaining() != nil {
		remaining = shard.GetRemaining().AsDuration().Round(100 * time.Millisecond).String()
	}
	return []printer.Cell{
		{Text: shard.GetService()}, {Text: fmt.Sprint(shard.GetShard())}, leader, {Text: cmp.Or(shard.GetLeaderAddress(), "-")}, {Text: epoch},
		{Text: printer.Since(now, since)}, {Text: remaining}, {Text: move(now, shard.GetMove()), Style: printer.Warning},
	}
}

// move returns how far a move is: "to node-2, draining for 3s".
func move(now time.Time, move *statusv1.Move) string {
	if move == nil {
		return ""
	}
	return fmt.Sprintf("to %s, %s for %s", cmp.Or(move.GetToReplicaId(), "any replica"), printer.EnumWord(move.GetState(), "STATE_"), printer.Since(now, move.GetStartTime()))
}

func summary(shards []*statusv1.ShardStatus) string {
	if len(shards) == 0 {
		return "no shards"
	}
	counts := map[string]int{}
	for _, shard := range shards {
		counts[state(shard)]++
	}
	return printer.Count(len(shards), "shard") + ": " + printer.Counts(counts, "led", "moving", "without a leader")
}
