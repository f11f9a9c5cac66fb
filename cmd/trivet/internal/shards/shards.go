// Package shards is `trivet shards`: which replica leads each shard of each service.
//
// A shard without a leader needs attention, with exit code 1. Package list has the rules of lists.
package shards

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// NewCommand returns `trivet shards`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var services []string
	return list.NewCommand(streams, list.Command[*statusv1.ShardStatus]{
		Flags:   &flags,
		Use:     "shards [SERVICE/SHARD]",
		Aliases: []string{"shard"},
		Short:   "Show which replica leads each shard of each service",
		Long: `Show which replica leads each shard of each service, and where it is reached. EPOCH grows with each leader.
SINCE is the age of the claim, or of the loss of the last leader. MOVE is the move of the shard to another
replica: "waiting" until its turn comes, "draining" while the leader finishes its work.`,
		ExitOne: "A shard has no leader.",
		Example: `  trivet shards
  trivet shards leasesvc/3
  trivet shards --service leasesvc,slicesvc -o wide
  trivet shards -o json | jq -r '.shards[] | select(.leaderId == "") | .name'`,
		RegisterFlags: func(command *cobra.Command) {
			command.Flags().StringSliceVar(&services, "service", nil, "Only shards of these services: "+strings.Join(serviceWords(), ", ")+".")
			client.CompleteListFlag(command, "service", serviceWords()...)
		},
		Filters:   []string{"service"},
		ParseName: parseName,
		ShortName: func(shard *statusv1.ShardStatus) string { return strings.TrimPrefix(shard.GetName(), prefix) },
		Validate:  func() []error { return []error{client.EachOf("--service", services, serviceWords()...)} },
		Kind:      kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*statusv1.ShardStatus] {
			return source(conn, services)
		},
	})
}

// serviceWords returns the services that have shards.
func serviceWords() []string { return []string{"leasesvc", "bootstrapsvc", "slicesvc"} }

// prefix begins the API's names.
const prefix = "shards/"

// parseName returns the API's name for SERVICE/SHARD, with or without "shards/".
func parseName(text string) (string, error) {
	service, number, _ := strings.Cut(strings.TrimPrefix(text, prefix), "/")
	if _, err := strconv.ParseUint(number, 10, 31); err != nil || !slices.Contains(serviceWords(), service) {
		return "", fmt.Errorf("%q is not the name of a shard: SERVICE/NUMBER, such as leasesvc/3", text)
	}
	return prefix + service + "/" + number, nil
}

// pageSize is the API's limit.
const pageSize = 5000

func source(conn grpc.ClientConnInterface, services []string) list.Source[*statusv1.ShardStatus] {
	page := func(ctx context.Context, services []string, token string) (*statusv1.ListShardsResponse, error) {
		return statusv1.NewStatusServiceClient(conn).ListShards(ctx, &statusv1.ListShardsRequest{Services: services, PageSize: pageSize, PageToken: token})
	}
	return list.Source[*statusv1.ShardStatus]{
		Get: func(ctx context.Context, name string) (*statusv1.ShardStatus, proto.Message, error) {
			return get(ctx, page, name)
		},
		Page: func(ctx context.Context, token string) (list.Page[*statusv1.ShardStatus], error) {
			response, err := page(ctx, services, token)
			return list.PageOf(response, response.GetShards(), err)
		},
		Response: func(all list.Page[*statusv1.ShardStatus]) proto.Message {
			return &statusv1.ListShardsResponse{Shards: all.Items, Sources: all.Sources, Missing: all.Missing}
		},
	}
}

// get returns a shard from the list of its service, because the API has no method for one shard.
func get(ctx context.Context, page func(context.Context, []string, string) (*statusv1.ListShardsResponse, error), name string) (*statusv1.ShardStatus, proto.Message, error) {
	service, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "/")
	for token := ""; ; {
		response, err := page(ctx, []string{service}, token)
		if err != nil {
			return nil, nil, err
		}
		for _, shard := range response.GetShards() {
			if shard.GetName() == name {
				return shard, &statusv1.ListShardsResponse{Shards: []*statusv1.ShardStatus{shard}, Sources: response.GetSources(), Missing: response.GetMissing()}, nil
			}
		}
		if next := response.GetNextPageToken(); next == "" || next == token {
			return nil, nil, fmt.Errorf("there is no %s; `trivet shards --service %s` lists the shards", name, service)
		}
		token = response.GetNextPageToken()
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
