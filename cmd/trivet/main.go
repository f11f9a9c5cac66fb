// Command trivet queries the gateway of a Trivet, checks an installation, and makes its
// certificates.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/apiservers"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/certs"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/check"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/debugbundle"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/events"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/leases"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/migrate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/repair"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/shards"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/slices"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/status"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/version"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/zones"
	"github.com/trivet-dev/trivet/internal/cli/dashboard"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/identity"
)

func main() {
	streams := printer.Standard()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action, so that a second signal ends the process at once

	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // the errors of calls say what client-go would log

	root, reports := command(streams), streams.Err
	if isPlugin(os.Args[0]) {
		reports = asPlugin(root, reports)
	}
	err := exit.Execute(ctx, root)
	exit.Report(reports, err)
	os.Exit(exit.CodeIn(ctx, err))
}

func command(streams printer.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "trivet",
		Short:         "Query the services of Trivet",
		Version:       identity.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          unknownCommand,
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	repairs := repair.NewListCommand(streams, "repairs")
	repairs.Hidden = true // the same as `trivet repair list`, under the name that the other lists have
	root.AddCommand(
		status.NewCommand(streams), shards.NewCommand(streams), nodes.NewCommand(streams),
		zones.NewCommand(streams), leases.NewCommand(streams), slices.NewCommand(streams), apiservers.NewCommand(streams),
		findings.NewCommand(streams), repair.NewCommand(streams), explain.NewCommand(streams), events.NewCommand(streams), shadow.NewCommand(streams),
		dashboard.NewCommand(streams), certs.NewCommand(streams), check.NewCommand(streams), migrate.NewCommand(streams), version.NewCommand(streams), repairs,
		debugbundle.NewCommand(streams, command),
	)
	return root
}

// unknownCommand names the program that has the commands of the laboratory.
func unknownCommand(command *cobra.Command, args []string) error {
	err := exit.UnknownCommand(command, args)
	if unknown, ok := errors.AsType[*exit.Error](err); ok {
		switch args[0] {
		case "up", "break", "restore":
			unknown.Try = "trivet-lab " + args[0]
		}
	}
	return err
}
