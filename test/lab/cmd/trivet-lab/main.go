// Command trivet-lab runs all of Trivet on one machine, for a first look and for tests: a control
// plane with simulated nodes, or a cluster with real ones. It also breaks parts of them.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/cluster"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcommand"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/up"
	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

func main() {
	streams := printer.Standard()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	isChild, err := nodecluster.RunChild(ctx, os.Args)
	if !isChild {
		context.AfterFunc(ctx, stop)                      // restores the default action, so that a second signal ends the process at once
		klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // the errors of calls say what client-go would log
		err = exit.Execute(ctx, command(streams))
	}
	exit.Report(streams.Err, err)
	os.Exit(exit.CodeIn(ctx, err))
}

func command(streams printer.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "trivet-lab",
		Short:         "Run all of Trivet on this machine, and break it",
		Version:       identity.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          exit.UnknownCommand,
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	dir, _ := filepath.Split(os.Args[0])
	lab, trivet := os.Args[0], dir+"trivet" // for suggested commands; `make build` builds both into one folder
	root.AddCommand(
		up.NewCommand(streams, lab, trivet), faultcommand.NewBreakCommand(streams, lab, trivet),
		faultcommand.NewRestoreCommand(streams, lab), cluster.NewCommand(),
	)
	return root
}
