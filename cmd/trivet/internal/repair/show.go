package repair

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

func newShowCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the steps of a repair, or of a stored plan",
		Long: `Show the steps of a repair and what came of each. A name that begins with "repairplans/" is that of a stored
plan.

Exit codes of a repair:
  0   It succeeded.
  1   A step failed, or it was cancelled.
  2   It has not ended, or there is no answer.
  64  The command line is wrong.

Exit codes of a plan: 0 nothing to write, 1 steps, 2 no answer.`,
		Example: `  trivet repair show a1
  trivet repair show repairplans/x7k2p`,
		RunE: func(command *cobra.Command, args []string) error {
			prefix, noun := repairPrefix, "repair"
			if len(args) == 1 && strings.HasPrefix(args[0], planPrefix) {
				prefix, noun = planPrefix, "plan"
			}
			name, err := parseArgument("show", noun, prefix, args)
			if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
				return err
			}
			if prefix == planPrefix {
				return showPlan(command.Context(), &flags, name)
			}
			return showRepair(command.Context(), &flags, name)
		},
	}
	flags.Register(command, streams, "table")
	command.ValidArgsFunction = completeRepair(&flags)
	return command
}

func showPlan(ctx context.Context, flags *client.Flags, name string) error {
	response, err := getPlan(ctx, flags, name)
	if err != nil {
		return err
	}
	if err := printPlan(flags, response, response.GetRepairPlan()); err != nil {
		return client.CannotPrint("plan", err)
	}
	if steps := len(response.GetRepairPlan().GetSteps()); steps > 0 {
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(steps, "step") + " in the plan"}
	}
	return nil
}

func showRepair(ctx context.Context, flags *client.Flags, name string) error {
	response, err := getRepair(ctx, flags, name)
	if err != nil {
		return err
	}
	if err := printRepair(flags, response, response.GetRepair()); err != nil {
		return client.CannotPrint("repair", err)
	}
	return verdict(response.GetRepair())
}

func newCancelCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	var dryRun bool
	command := &cobra.Command{
		Use:   "cancel NAME",
		Short: "End a repair that has steps left",
		Long: `End a repair that has steps left. What it has written stays.

Exit codes:
  0   It is cancelled; with --dry-run, it can be cancelled.
  2   There is no answer, or it has ended otherwise.
  64  The command line is wrong.`,
		Example: "  trivet repair cancel a1",
		RunE: func(command *cobra.Command, args []string) error {
			name, err := parseArgument("cancel", "repair", repairPrefix, args)
			if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
				return err
			}
			return cancelRepair(command.Context(), &flags, name, dryRun)
		},
	}
	flags.Register(command, streams, "table")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "Check everything and change nothing.")
	command.ValidArgsFunction = completeRepair(&flags)
	return command
}

func cancelRepair(ctx context.Context, flags *client.Flags, name string, dryRun bool) error {
	response, err := client.Mutate(ctx, flags, "answer about "+name, func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (*bootstrapv1.CancelRepairResponse, error) {
		return bootstrapv1.NewRepairServiceClient(conn).CancelRepair(ctx, &bootstrapv1.CancelRepairRequest{Name: name, ValidateOnly: dryRun, RequestId: requestID})
	})
	if err != nil {
		return err
	}
	if err := printRepair(flags, response, response.GetRepair()); err != nil {
		return client.CannotPrint("repair", err)
	}
	if dryRun {
		flags.Note("dry run: nothing was changed")
	}
	return nil
}
