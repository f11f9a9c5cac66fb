package debugbundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/observe/loglevel"
)

// maxAnswer bounds the answer of a server to a change of its log level.
const maxAnswer = 64 << 10

// logLevelCommand is one run of `trivet debug log-level`.
type logLevelCommand struct {
	gateway client.Gateway
	timeout time.Duration
	last    time.Duration
	reset   bool
	streams printer.Streams
}

func levels() []string { return []string{"debug", "info", "warn", "error"} }

func newLogLevelCommand(streams printer.Streams) *cobra.Command {
	c := &logLevelCommand{streams: streams}
	command := &cobra.Command{
		Use:   "log-level SERVICE [LEVEL]",
		Short: "Show or change the log level of the replicas of a service",
		Long: `Show the log level of each replica of a service, or change it for a time. Afterwards the replica logs from its
--log-level again; so it does after a restart.

A change needs the right to put /debug/log-level, which ClusterRole trivet-debug has.

Exit codes:
  0   Every replica answered.
  2   A replica gave no answer, or there is none.
  64  The command line is wrong.`,
		Example: `  trivet debug log-level slicesvc debug --for 10m
  trivet debug log-level slicesvc --reset`,
		Args: func(_ *cobra.Command, args []string) error { return c.validate(args) },
		RunE: func(command *cobra.Command, args []string) error { return c.run(command.Context(), args) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"}, cobra.ShellCompDirectiveNoFileComp
			case 1:
				return levels(), cobra.ShellCompDirectiveNoFileComp
			default:
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
		},
	}
	fs := command.Flags()
	c.gateway.RegisterFlags(fs, streams.Env)
	fs.DurationVar(&c.timeout, "timeout", 10*time.Second, "Timeout of one question.")
	fs.DurationVar(&c.last, "for", 10*time.Minute, "How long the level lasts.")
	fs.BoolVar(&c.reset, "reset", false, "Return to --log-level of the server now.")
	return command
}

func (c *logLevelCommand) validate(args []string) error {
	problems := c.gateway.Validate()
	switch {
	case len(args) == 0 || len(args) > 2:
		problems = append(problems, fmt.Errorf("log-level takes a service and a level, got %q", args))
	case len(args) == 2 && c.reset:
		problems = append(problems, errors.New("--reset takes no level"))
	case len(args) == 2:
		if err := client.OneOf("level", args[1], levels()...); err != nil {
			problems = append(problems, err)
		}
	}
	if c.last <= 0 {
		problems = append(problems, fmt.Errorf("--for=%s: must be positive", c.last))
	}
	if c.timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout=%s: must be positive", c.timeout))
	}
	return exit.UsageError(problems...)
}

func (c *logLevelCommand) run(ctx context.Context, args []string) error {
	admin, err := c.gateway.Admin()
	if err != nil {
		return err
	}
	replicas, err := listReplicas(ctx, &c.gateway, admin, c.timeout)
	if err != nil {
		return err
	}
	replicas = slices.DeleteFunc(replicas, func(replica client.Replica) bool { return replica.Service != args[0] })
	if len(replicas) == 0 {
		return &exit.Error{Code: exit.Undetermined, Summary: fmt.Sprintf("there is no replica of %s", args[0])}
	}
	method, path := http.MethodGet, loglevel.Path
	switch {
	case c.reset:
		method = http.MethodDelete
	case len(args) == 2:
		method, path = http.MethodPut, path+"?"+url.Values{"level": {args[1]}, "for": {c.last.String()}}.Encode()
	}
	lines, failures := make([]string, len(replicas)), make([]error, len(replicas))
	var asking sync.WaitGroup
	for i, replica := range replicas {
		asking.Go(func() {
			lines[i], failures[i] = c.ask(ctx, admin.Client(replica), method, path)
			lines[i] = printer.Sanitize(replica.Name + "  " + lines[i])
		})
	}
	asking.Wait()
	if _, err := fmt.Fprintln(c.streams.Out, strings.Join(lines, "\n")); err != nil {
		return client.CannotPrint("log levels", err)
	}
	if err := errors.Join(failures...); err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "no answer of every replica", Err: err}
	}
	return nil
}

func (c *logLevelCommand) ask(ctx context.Context, to *http.Client, method, path string) (string, error) {
	defer to.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	body, _, err := client.Ask(ctx, to, method, path, maxAnswer)
	var state loglevel.State
	if err == nil {
		err = json.Unmarshal(body, &state)
	}
	if err != nil {
		return "unknown: " + err.Error(), err
	}
	if state.Until == nil {
		return state.Level, nil
	}
	return fmt.Sprintf("%s until %s, then %s", state.Level, state.Until.Local().Format(time.TimeOnly), state.Configured), nil
}
