package up

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// NewCommand makes `trivet up`; name is how trivet was called, for the commands that it suggests. Errors it returns say
// their exit code, see package exit.
func NewCommand(streams printer.Streams, name string) *cobra.Command {
	opts := DefaultOptions()
	opts.Command = name
	command := &cobra.Command{
		Use:   "up",
		Short: "Run a control plane, all services and a simulated fleet on this machine",
		Long: "Starts etcd and kube-apiserver, leasesvc, bootstrapsvc, slicesvc and the gateway, and a small simulated fleet,\n" +
			"prints where to look, and stops all of it on Ctrl-C. With --kubeconfig and --etcd-endpoints it serves a cluster\n" +
			"that you have, and simulates nothing unless --fleet=on.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if problems := opts.Validate(); len(problems) > 0 {
				return exit.UsageError(problems...)
			}
			if err := Run(cmd.Context(), opts, streams.Out); err != nil {
				var coded *exit.Error
				if errors.As(err, &coded) {
					return coded
				}
				return &exit.Error{Code: exit.Findings, Summary: "trivet up ended", Err: err}
			}
			return nil
		},
	}
	opts.RegisterFlags(command.Flags())
	return command
}
