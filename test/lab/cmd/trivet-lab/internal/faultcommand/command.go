// Package faultcommand is `trivet-lab break` and `trivet-lab restore`: they break a part of a
// running `trivet-lab up --demo` on this machine, list what is broken, and restore it.
package faultcommand

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/localgateway"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
)

const exitCodes = `

Exit codes:
  0   Done.
  2   No trivet-lab up --demo of yours runs, or it failed.
  64  The command line is wrong, or names no part of the demo.`

// NewBreakCommand returns `trivet-lab break`. lab and trivet are the paths of this executable and
// of trivet, for the suggested commands.
func NewBreakCommand(streams printer.Streams, lab, trivet string) *cobra.Command {
	c := &caller{streams: streams, lab: lab, trivet: trivet}
	var how string
	var duration time.Duration
	var list bool
	command := &cobra.Command{
		Use:   "break KIND [NAME]",
		Short: "Break a part of trivet-lab up --demo",
		Long: "Break a part of a running trivet-lab up --demo of yours on this machine, and say what to look at next. Without a\n" +
			"NAME it is the first one that is not broken; the name of a service means its last replica. Each fault lasts\n" +
			"until trivet-lab restore, the end of --for, or the end of trivet-lab up.\n\nKINDs, and their --how with the default first:\n\n" +
			describeKinds() + exitCodes,
		Example: `  trivet-lab break node
  trivet-lab break zone sim-a --for 1m
  trivet-lab break service leasesvc --how kill
  trivet-lab break address --how duplicate
  trivet-lab break --list`,
		RunE: func(command *cobra.Command, args []string) error {
			if list {
				if err := exit.UsageError(listProblems(command, args)...); err != nil {
					return err
				}
				return c.list(command.Context())
			}
			kind, target, err := parseTarget(args)
			if err == nil && (duration < 0 || duration > fault.MaxDuration) {
				err = fmt.Errorf("--for: %v is not between 0 and %v", duration, fault.MaxDuration)
			}
			if err != nil {
				return exit.UsageError(err)
			}
			return c.breakTarget(command.Context(), fault.Request{Kind: kind, Name: target, How: how, Seconds: duration.Seconds()})
		},
		ValidArgsFunction: c.completeTargets,
	}
	fs := command.Flags()
	fs.StringVar(&how, "how", "", "How to break it; default: the first way of the KIND.")
	fs.DurationVar(&duration, "for", 0, "Restore it after this time, at most an hour; 0 means not before trivet-lab restore.")
	fs.BoolVar(&list, "list", false, "List what is broken, and break nothing.")
	_ = command.RegisterFlagCompletionFunc("how", completeHow)
	return command
}

// NewRestoreCommand returns `trivet-lab restore`.
func NewRestoreCommand(streams printer.Streams, lab string) *cobra.Command {
	c := &caller{streams: streams, lab: lab}
	var all bool
	command := &cobra.Command{
		Use:   "restore KIND [NAME] | --all",
		Short: "Restore what trivet-lab break broke",
		Long: "Restore a part of a running trivet-lab up --demo of yours that trivet-lab break broke, all parts of a KIND, or all parts,\n" +
			"and wait until it is done. A kube-apiserver takes some seconds to start." + exitCodes,
		Example: `  trivet-lab restore node sim-node-0000
  trivet-lab restore service
  trivet-lab restore --all`,
		RunE: func(command *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return exit.UsageError(fmt.Errorf("--all takes no arguments, got %q", args))
			}
			target := fault.Target{}
			if !all {
				var err error
				if target.Kind, target.Name, err = parseTarget(args); err != nil {
					return exit.UsageError(err)
				}
			}
			return c.restore(command.Context(), target)
		},
		ValidArgsFunction: c.completeBroken,
	}
	command.Flags().BoolVar(&all, "all", false, "Restore everything.")
	return command
}

func describeKinds() string {
	var lines []string
	for _, info := range fault.Kinds() {
		lines = append(lines, fmt.Sprintf("  %-9s  %-22s  %s", info.Kind, strings.Join(info.Hows, ", "), info.Text))
	}
	return strings.Join(lines, "\n")
}

func listProblems(command *cobra.Command, args []string) []error {
	var problems []error
	if len(args) > 0 {
		problems = append(problems, fmt.Errorf("--list takes no arguments, got %q", args))
	}
	for _, name := range []string{"how", "for"} {
		if command.Flags().Changed(name) {
			problems = append(problems, fmt.Errorf("--%s does not go with --list", name))
		}
	}
	return problems
}

func parseTarget(args []string) (fault.Kind, string, error) {
	switch {
	case len(args) == 0:
		_, err := fault.ParseKind("")
		return "", "", fmt.Errorf("the KIND is missing: %w", err)
	case len(args) > 2:
		return "", "", fmt.Errorf("there is one NAME at most, got %q", args[1:])
	}
	kind, err := fault.ParseKind(args[0])
	if err != nil {
		return "", "", fmt.Errorf("KIND: %w", err)
	}
	if len(args) == 1 {
		return kind, "", nil
	}
	if args[1] == "" {
		return "", "", fmt.Errorf("the NAME is empty")
	}
	return kind, args[1], nil
}

// socket returns the path of the demo's socket.
func (c *caller) socket() (string, error) {
	if path := c.streams.Env(faultcontroller.SocketVariable); path != "" {
		return path, nil
	}
	if published, found := localgateway.Find(c.streams.Env); found && published(faultcontroller.SocketVariable) != "" {
		return published(faultcontroller.SocketVariable), nil
	}
	return "", &exit.Error{
		Code: exit.Undetermined, Summary: "no trivet-lab up --demo of yours was found on this machine",
		Try: "start " + c.lab + " up --demo; with --free-ports, read its settings first: . FOLDER/client.env",
	}
}

func (c *caller) breakTarget(ctx context.Context, request fault.Request) error {
	var f fault.Fault
	if err := c.call(ctx, breakPath, request, &f); err != nil {
		return err
	}
	c.line("%s is broken (%s): %s.", f.Target, f.How, f.Effect.Text)
	if !f.Until.IsZero() {
		c.line("It is restored at %s.", f.Until.Local().Format(time.TimeOnly))
	}
	c.line("")
	c.line("Look at:")
	for _, step := range f.Steps {
		c.line("  %s %s", c.trivet, step.Command)
		c.line("      within %d s: %s", step.Seconds, step.Expect)
	}
	c.line("")
	c.line("Restore: %s restore %s", c.lab, f.Target)
	return nil
}

func (c *caller) restore(ctx context.Context, target fault.Target) error {
	var reply restoreReply
	if err := c.call(ctx, restorePath, target, &reply); err != nil {
		return err
	}
	if len(reply.Restored) == 0 {
		c.line("Nothing is broken.")
	}
	for _, restored := range reply.Restored {
		c.line("%s is restored.", restored)
	}
	return nil
}

func (c *caller) list(ctx context.Context) error {
	var report report
	if err := c.call(ctx, listPath, nil, &report); err != nil {
		return err
	}
	if len(report.Faults) == 0 {
		c.line("Nothing is broken. Break something: %s break node", c.lab)
	}
	for _, f := range report.Faults {
		until := "until trivet-lab restore"
		if !f.Until.IsZero() {
			until = "until " + f.Until.Local().Format(time.TimeOnly)
		}
		c.line("%s  %s  %s  since %s, %s", f.Target, f.How, f.Phase, f.Since.Local().Format(time.TimeOnly), until)
		if f.Problem != "" {
			c.line("    not restored yet: %s", f.Problem)
		} else if f.Effect.Text != "" {
			c.line("    %s", f.Effect.Text)
		}
	}
	if report.Cores > 0 {
		c.line("The demo uses %.2f cores (mean of 10 s).", report.Cores)
	}
	return nil
}
