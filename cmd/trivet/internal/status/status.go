// Package status is `trivet status`: the state of a cluster's Trivet services as the gateway
// reports it.
//
// Standard output has the status in the chosen format and nothing else. Progress and errors go to
// standard error. The exit code comes from the gateway's verdict alone: 0 for OK, 1 for WARNING and
// FAILED, 2 for UNKNOWN; and 2 without a status. A watch ends only when it is interrupted, and
// continues through restarts of the gateway.
//
// JSON and YAML are the gateway's answer as /v1/status gives it. The table is for people and may
// change.
package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// command is one run of `trivet status`: its flags, and what they lead to.
type command struct {
	client.Flags

	wait         bool
	waitDuration time.Duration
	watch        bool
	interval     time.Duration

	streams printer.Streams
	client  gatewayv1.ClusterServiceClient
}

// NewCommand returns `trivet status`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	c := command{streams: streams}
	cobraCommand := &cobra.Command{
		Use:   "status",
		Short: "Show whether the cluster is well, and the state of all Trivet services",
		Long: `Show the gateway's verdict on the cluster, its problems with the worst first, and the state of every replica
of the Trivet services.

  OK       All that matters is known and well.
  WARNING  It works, and needs attention.
  UNKNOWN  Too little is known to say more; nothing that is known has failed.
  FAILED   Something that users rely on does not work.

ROLE says which shards a replica leads; "trivet shards" shows each of them.

Exit codes:
  0   The verdict is OK.
  1   It is WARNING or FAILED, also after --wait.
  2   It is UNKNOWN, or there is no status.
  64  The command line is wrong.`,
		Example: `  trivet status
  trivet status --wait --wait-duration 2m
  trivet status -w
  trivet status -o json | jq -r '.status.verdict.problems[] | .severity + " " + .message'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("status takes no arguments, got %q", args))
			}
			return nil
		},
		RunE: func(cobraCommand *cobra.Command, _ []string) error {
			if err := c.validate(); err != nil {
				return err
			}
			return c.run(cobraCommand.Context())
		},
	}
	c.Register(cobraCommand, streams, "table")
	cobraCommand.ValidArgsFunction = cobra.NoFileCompletions
	fs := cobraCommand.Flags()
	fs.BoolVar(&c.wait, "wait", false, "Wait until the verdict is OK, then show the status.")
	fs.DurationVar(&c.waitDuration, "wait-duration", 5*time.Minute, "Timeout of --wait.")
	fs.BoolVarP(&c.watch, "watch", "w", false, "Watch: in place on a terminal, elsewhere once for each change. Counts and ages are not changes.")
	fs.DurationVar(&c.interval, "interval", time.Second, "Interval between two statuses of --watch and --wait.")
	return cobraCommand
}

func (c *command) validate() error {
	problems := c.Validate()
	if c.wait && c.watch {
		problems = append(problems, errors.New("--wait and --watch cannot be combined: only --wait ends"))
	}
	if c.interval < 250*time.Millisecond || c.interval > time.Hour {
		problems = append(problems, fmt.Errorf("--interval=%s: must be between 250ms and 1h", c.interval))
	}
	if c.waitDuration <= 0 {
		problems = append(problems, fmt.Errorf("--wait-duration=%s: must be positive", c.waitDuration))
	}
	return exit.UsageError(problems...)
}

func (c *command) run(ctx context.Context) error {
	conn, err := c.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	c.client = gatewayv1.NewClusterServiceClient(conn)
	switch {
	case c.watch:
		return c.runWatch(ctx)
	case c.wait:
		return c.runWait(ctx)
	default:
		return c.runOnce(ctx)
	}
}

func (c *command) runOnce(ctx context.Context) error {
	progress := c.Slow("waiting for the status from " + c.Gateway.Where())
	response, err := c.get(ctx)
	progress.Stop()
	if err != nil {
		return c.NoAnswer(ctx, "status", err)
	}
	return c.finish(response)
}

func (c *command) get(ctx context.Context) (*gatewayv1.GetClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return c.client.GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
}

// finish prints the status and returns its exit code.
func (c *command) finish(response *gatewayv1.GetClusterStatusResponse) error {
	if err := c.write(response); err != nil {
		return client.CannotPrint("status", err)
	}
	return verdictError(response, "")
}

// verdictError returns the exit code of a verdict. The text after it says when it was given.
func verdictError(response *gatewayv1.GetClusterStatusResponse, when string) error {
	verdict := response.GetStatus().GetVerdict()
	summary := "the verdict is " + stateOf(verdict) + when + ": " + printer.Count(len(verdict.GetProblems()), "problem")
	switch verdict.GetState() {
	case metav1.Verdict_STATE_OK:
		return nil
	case metav1.Verdict_STATE_WARNING, metav1.Verdict_STATE_FAILED:
		return &exit.Error{Code: exit.Findings, Summary: summary}
	default:
		return &exit.Error{Code: exit.Undetermined, Summary: summary}
	}
}

// stateOf returns the state of a verdict as the API names it: "OK".
func stateOf(verdict *metav1.Verdict) string {
	if verdict.GetState() == metav1.Verdict_STATE_UNSPECIFIED {
		return "not stated"
	}
	return strings.TrimPrefix(verdict.GetState().String(), "STATE_")
}
