// Package version is `trivet version`: the version of this program and of the servers that the
// gateway reaches.
//
// A replica of another version than this program is marked, because a rolling update that stopped
// half-way looks like this. That is no failure: versions of one API work together.
package version

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
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
		Long: `Show the version of this program and of each replica that the gateway reaches. A replica of another version
than this program is marked; its API is the same.

Exit codes:
  0   Every replica told its version, or --client was given.
  2   The gateway or a replica gave no answer.
  64  The command line is wrong.`,
		Example: `  trivet version
  trivet version --client`,
		RunE: func(command *cobra.Command, args []string) error {
			problems := flags.Validate()
			if len(args) > 0 {
				problems = append(problems, fmt.Errorf("version takes no arguments, got %q", args))
			}
			if clientOnly && flags.Output != "table" {
				problems = append(problems, errors.New("--client has the table only"))
			}
			if err := exit.UsageError(problems...); err != nil {
				return err
			}
			return show(command.Context(), streams, &flags, clientOnly)
		},
	}
	flags.Register(command, streams, "table", "json", "yaml")
	command.Flags().BoolVar(&clientOnly, "client", false, "Ask no server.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

func show(ctx context.Context, streams printer.Streams, flags *client.Flags, clientOnly bool) error {
	table := &printer.Table{Colors: streams.Colors(flags.Color), Width: streams.Width()}
	table.AddStyled(printer.Bold, "COMPONENT", "VERSION", "REPLICA")
	table.AddStyled(printer.Normal, "trivet", identity.Version(), fmt.Sprintf("this program, %s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH))
	if clientOnly {
		return write(streams, table)
	}
	response, err := client.Call(ctx, flags, "version", func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.GetClusterStatusResponse, error) {
		return gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
	})
	if err != nil {
		return errors.Join(write(streams, table), err)
	}
	if written, err := printer.WriteMessage(streams.Out, flags.Output, response); err != nil {
		return client.CannotPrint("versions", err)
	} else if written {
		return nil
	}
	silent := addReplicas(table, response.GetStatus())
	if err := write(streams, table); err != nil {
		return err
	}
	if silent > 0 {
		return &exit.Error{Code: exit.Undetermined, Summary: printer.Count(silent, "replica") + " gave no answer"}
	}
	return nil
}

func write(streams printer.Streams, table *printer.Table) error {
	if _, err := table.WriteTo(streams.Out); err != nil {
		return client.CannotPrint("versions", err)
	}
	return nil
}

// addReplicas adds a row for each replica, and returns how many gave no answer.
func addReplicas(table *printer.Table, status *gatewayv1.ClusterStatus) (silent int) {
	for _, service := range status.GetServices() {
		for _, replica := range service.GetReplicas() {
			cell := printer.Cell{Text: replica.GetReplica().GetVersion()}
			switch {
			case replica.GetStatus() == nil:
				silent++
				cell = printer.Cell{Text: "no answer", Style: printer.Failure}
			case cell.Text != identity.Version():
				cell.Style = printer.Warning
			}
			table.Add(printer.Cell{Text: service.GetService()}, cell, printer.Cell{Text: replica.GetReplica().GetId()})
		}
	}
	return silent
}
