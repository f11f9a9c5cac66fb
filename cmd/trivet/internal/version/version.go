// Package version is `trivet version`: the versions of this program and of the servers that the
// gateway reaches, and their skew.
package version

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/identity"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NewCommand returns `trivet version`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	var clientOnly bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program and of the servers",
		Long: `Show the version of this program and of each replica that the gateway reaches. SKEW compares a replica with
this program:

  none          The versions are equal.
  supported     The minor versions differ by one at most.
  unsupported   They differ by more. Two replicas must not differ by more either.
  not-released  One of them is a build of a commit, which has no place in the order of releases.
  unknown       The replica did not tell its version.

Exit codes:
  0   Every replica told its version and no skew is unsupported, or --client was given.
  1   A skew is unsupported.
  2   The gateway or a replica gave no answer.
  64  The command line is wrong.`,
		Example: `  trivet version
  trivet version --client
  trivet version -o jsonpath='{.servers[?(@.skew!="none")].replicaId}'`,
		RunE: func(command *cobra.Command, args []string) error {
			problems := flags.Validate()
			if len(args) > 0 {
				problems = append(problems, fmt.Errorf("version takes no arguments, got %q", args))
			}
			if err := exit.UsageError(problems...); err != nil {
				return err
			}
			return run(command.Context(), &flags, clientOnly)
		},
	}
	flags.Register(command, streams, "table", "name")
	command.Flags().BoolVar(&clientOnly, "client", false, "Ask no server.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

// versions is the answer.
type versions struct {
	Client program `json:"client"`
	// Servers is empty if none was asked.
	Servers []server `json:"servers"`
	// Skew is the largest one of all pairs.
	Skew Skew `json:"skew"`
	// MaxMinorSkew is the largest supported difference of minor versions.
	MaxMinorSkew int `json:"maxMinorSkew"`

	between string // the pair with the largest skew
	silent  int    // replicas that gave no answer
}

type program struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

type server struct {
	Service   string `json:"service"`
	ReplicaID string `json:"replicaId"`
	Version   string `json:"version"`
	// Skew compares it with this program.
	Skew Skew `json:"skew"`
	// Answered is false if the replica is registered and did not answer.
	Answered bool `json:"answered"`
}

func run(ctx context.Context, flags *client.Flags, clientOnly bool) error {
	var status *gatewayv1.ClusterStatus
	var noAnswer error
	if !clientOnly {
		response, err := client.Call(ctx, flags, "version", func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.GetClusterStatusResponse, error) {
			return gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
		})
		status, noAnswer = response.GetStatus(), err
	}
	all := compare(identity.Version(), status)
	if err := flags.Print(all, func() error { return printFor(flags, all) }); err != nil {
		return errors.Join(noAnswer, client.CannotPrint("versions", err))
	}
	switch {
	case noAnswer != nil:
		return noAnswer
	case all.Skew == Unsupported:
		return &exit.Error{
			Code:    exit.Findings,
			Summary: printer.Sanitize("unsupported skew between the versions " + all.between),
			Try:     fmt.Sprintf("update the older one: minor versions may differ by %d at most", maxMinorSkew),
		}
	case all.silent > 0:
		return &exit.Error{Code: exit.Undetermined, Summary: printer.Count(all.silent, "replica") + " gave no answer"}
	default:
		return nil
	}
}

// compare returns the versions of all replicas of a status, which may be nil.
func compare(own string, status *gatewayv1.ClusterStatus) versions {
	all := versions{
		Client:  program{Version: own, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH},
		Servers: []server{}, MaxMinorSkew: maxMinorSkew,
	}
	told := []string{own}
	for _, service := range status.GetServices() {
		for _, result := range service.GetReplicas() {
			version := result.GetReplica().GetVersion()
			answered := result.GetStatus() != nil
			if !answered {
				all.silent++
			}
			told = append(told, version)
			all.Servers = append(all.Servers, server{service.GetService(), result.GetReplica().GetId(), version, SkewOf(own, version), answered})
		}
	}
	all.Skew, all.between = worstOf(told)
	return all
}

func printFor(flags *client.Flags, all versions) error {
	if flags.Output == "name" {
		for _, server := range all.Servers {
			if err := flags.PrintLine(server.Service + "/" + server.ReplicaID); err != nil {
				return err
			}
		}
		return nil
	}
	table := flags.NewTable("COMPONENT", "VERSION", "SKEW", "REPLICA")
	table.AddStyled(printer.Normal, "trivet", all.Client.Version, "-", fmt.Sprintf("this program, %s %s", all.Client.GoVersion, all.Client.Platform))
	for _, server := range all.Servers {
		version := printer.Cell{Text: server.Version}
		if !server.Answered {
			version = printer.Cell{Text: "no answer", Style: printer.Failure}
		}
		styles := map[Skew]printer.Style{Supported: printer.Warning, NotReleased: printer.Warning, Unknown: printer.Warning, Unsupported: printer.Failure}
		table.Add(printer.Cell{Text: server.Service}, version, printer.Cell{Text: string(server.Skew), Style: styles[server.Skew]}, printer.Cell{Text: server.ReplicaID})
	}
	return flags.WriteTable(table)
}
