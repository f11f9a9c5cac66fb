package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/gatewayconn"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// options are the command's flags.
type options struct {
	gateway      gatewayconn.Config
	output       string
	color        string
	wait         bool
	waitDuration time.Duration
	watch        bool
	interval     time.Duration
	timeout      time.Duration
}

// NewCommand makes `trivet status`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams terminal.Streams) *cobra.Command {
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
	opts.registerFlags(command.Flags(), streams)
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err) })
	return command
}

func (o *options) registerFlags(fs *pflag.FlagSet, streams terminal.Streams) {
	o.gateway.RegisterFlags(fs, streams.Env)
	fs.StringVarP(&o.output, "output", "o", "table", "Form of the status: table, json or yaml.")
	fs.StringVar(&o.color, "color", "auto", "Colour in the table: auto, always or never. NO_COLOR turns auto off.")
	fs.BoolVar(&o.wait, "wait", false, "Wait until the cluster is healthy, then show it.")
	fs.DurationVar(&o.waitDuration, "wait-duration", 5*time.Minute, "How long --wait waits.")
	fs.BoolVarP(&o.watch, "watch", "w", false, "Go on showing it: in place on a terminal, else once per change. Counts and ages are no change.")
	fs.DurationVar(&o.interval, "interval", time.Second, "How often --watch and --wait ask.")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Second, "How long one answer of the gateway may take.")
}

func (o *options) validate() error {
	problems := o.gateway.Validate()
	problems = append(problems, oneOf("--output", o.output, "table", "json", "yaml"), oneOf("--color", o.color, "auto", "always", "never"))
	if o.wait && o.watch {
		problems = append(problems, errors.New("--wait ends and --watch does not; give one of them"))
	}
	if o.interval < 250*time.Millisecond || o.interval > time.Hour {
		problems = append(problems, fmt.Errorf("--interval=%s: must be between 250ms and 1h", o.interval))
	}
	if o.waitDuration <= 0 {
		problems = append(problems, fmt.Errorf("--wait-duration=%s: must be positive", o.waitDuration))
	}
	if o.timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout=%s: must be positive", o.timeout))
	}
	return exit.UsageError(problems...)
}

func oneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("%s=%q: must be one of %s", flag, value, strings.Join(known, ", "))
}

func run(ctx context.Context, streams terminal.Streams, opts options) error {
	if err := opts.validate(); err != nil {
		return err
	}
	conn, err := opts.gateway.Dial(slog.New(slog.DiscardHandler))
	if err != nil {
		return exit.UsageError(err)
	}
	defer conn.Close()
	s := &session{
		options: opts,
		client:  gatewayv1.NewGatewayServiceClient(conn),
		streams: streams,
		printer: newPrinter(opts.output, streams.Ink(opts.color)),
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
