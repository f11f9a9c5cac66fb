package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// options are the command's flags.
type options struct {
	client.Flags

	wait         bool
	waitDuration time.Duration
	watch        bool
	interval     time.Duration
}

// NewCommand makes `trivet status`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	var opts options
	command := &cobra.Command{
		Use:   "status",
		Short: "Show how all Trivet services of a cluster fare",
		Long: `Show how all Trivet services of a cluster fare: who leads, which replicas are ready, how their loops do.

Exit codes: 0 healthy; 1 not healthy, or waited in vain; 2 no status could be had; 64 wrong usage.
A gateway on loopback is reached in plaintext unless TLS flags are given.`,
		Example: `  trivet status
  trivet status --wait --wait-duration 2m
  trivet status -w
  trivet status -o json | jq '.status.services[] | {service, leader, problems}'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("status takes no arguments, got %q", args))
			}
			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			return run(command.Context(), streams, opts)
		},
	}
	opts.Register(command, streams, "table", "json", "yaml")
	opts.registerFlags(command.Flags())
	return command
}

func (o *options) registerFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.wait, "wait", false, "Wait until the cluster is healthy, then show it.")
	fs.DurationVar(&o.waitDuration, "wait-duration", 5*time.Minute, "How long --wait waits.")
	fs.BoolVarP(&o.watch, "watch", "w", false, "Go on showing it: in place on a terminal, else once per change. Counts and ages are no change.")
	fs.DurationVar(&o.interval, "interval", time.Second, "How often --watch and --wait ask.")
}

func (o *options) validate() error {
	problems := o.Validate()
	if o.wait && o.watch {
		problems = append(problems, errors.New("--wait ends and --watch does not; give one of them"))
	}
	if o.interval < 250*time.Millisecond || o.interval > time.Hour {
		problems = append(problems, fmt.Errorf("--interval=%s: must be between 250ms and 1h", o.interval))
	}
	if o.waitDuration <= 0 {
		problems = append(problems, fmt.Errorf("--wait-duration=%s: must be positive", o.waitDuration))
	}
	return exit.UsageError(problems...)
}

func run(ctx context.Context, streams printer.Streams, opts options) error {
	if err := opts.validate(); err != nil {
		return err
	}
	conn, err := opts.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	s := &session{
		options: opts,
		client:  gatewayv1.NewGatewayServiceClient(conn),
		streams: streams,
		encoder: newEncoder(opts.Output, streams.Ink(opts.Color)),
	}
	switch {
	case opts.watch:
		return s.watchOn(ctx)
	case opts.wait:
		return s.awaitHealth(ctx)
	default:
		return s.showOnce(ctx)
	}
}
