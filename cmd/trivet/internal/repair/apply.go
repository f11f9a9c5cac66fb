package repair

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// planPrefix and repairPrefix begin the API's names.
const (
	planPrefix   = "repairplans/"
	repairPrefix = "repairs/"
)

// parseArgument returns the API's name for the only argument of a command, with or without the
// prefix.
func parseArgument(command, noun, prefix string, args []string) (string, error) {
	if len(args) != 1 {
		return "", fmt.Errorf("repair %s takes the name of one %s, got %q", command, noun, args)
	}
	name := prefix + strings.TrimPrefix(args[0], prefix)
	if len(name) > 256 || !regexp.MustCompile(`^[a-z]+/[-a-z0-9._]+$`).MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a %s: lower-case letters, digits and -._, at most 256", args[0], noun)
	}
	return name, nil
}

func newApplyCommand(streams printer.Streams) *cobra.Command {
	var flags writeFlags
	command := &cobra.Command{
		Use:   "apply PLAN",
		Short: "Apply a stored plan",
		Long: `Apply a plan of "trivet repair plan", and follow the repair to its end. Each step is checked again and written
only if its object has not changed. If any step differs from the plan, nothing is written. After a lost
answer, run the same command again: a plan is applied once, so it follows the repair or shows its result.

On a terminal the command shows the plan and asks first. Elsewhere it needs --yes.

Exit codes:
  0   Every step is applied or not needed; with --dry-run, the plan can be applied.
  1   A step failed, or the repair was cancelled.
  2   There is no answer, or the repair has not ended.
  64  The command line is wrong.
  130 You answered no.`,
		Example: `  trivet repair apply repairplans/x7k2p
  trivet repair apply x7k2p --yes`,
		RunE: func(command *cobra.Command, args []string) error {
			name, err := parseArgument("apply", "plan", planPrefix, args)
			if err := exit.UsageError(append(flags.validate(streams), err)...); err != nil {
				return err
			}
			return applyStored(command.Context(), streams, &flags, name)
		},
	}
	flags.register(command, streams)
	command.ValidArgsFunction = completePlan(&flags.Flags)
	return command
}

func applyStored(ctx context.Context, streams printer.Streams, flags *writeFlags, name string) error {
	response, err := getPlan(ctx, &flags.Flags, name)
	if err != nil {
		return err
	}
	plan := response.GetRepairPlan()
	if !flags.yes && !flags.dryRun && flags.Output == "table" {
		if err := printSteps(&flags.Flags, plan.GetSteps(), false); err != nil {
			return client.CannotPrint("plan", err)
		}
	}
	return confirmAndApply(ctx, streams, flags, plan)
}

func getPlan(ctx context.Context, flags *client.Flags, name string) (*bootstrapv1.GetRepairPlanResponse, error) {
	return client.Call(ctx, flags, "answer about "+name, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.GetRepairPlanResponse, error) {
		return bootstrapv1.NewRepairServiceClient(conn).GetRepairPlan(ctx, &bootstrapv1.GetRepairPlanRequest{Name: name})
	})
}

// confirmAndApply asks, applies a plan that was read, and follows the repair.
func confirmAndApply(ctx context.Context, streams printer.Streams, flags *writeFlags, plan *bootstrapv1.RepairPlan) error {
	if !flags.yes && !flags.dryRun {
		if err := confirm(ctx, streams); err != nil {
			return err
		}
	}
	response, err := client.Mutate(ctx, &flags.Flags, "result of the repair", func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (*bootstrapv1.ApplyRepairPlanResponse, error) {
		return bootstrapv1.NewRepairServiceClient(conn).ApplyRepairPlan(ctx, &bootstrapv1.ApplyRepairPlanRequest{
			Name: plan.GetName(), Etag: plan.GetEtag(), ValidateOnly: flags.dryRun, RequestId: requestID,
		})
	})
	if err != nil && isTimeout(err) && !flags.dryRun {
		response, err = startedRepair(ctx, flags, plan.GetName(), err)
	}
	if err != nil {
		return err
	}
	if !flags.dryRun && response.GetRepair().GetState() == bootstrapv1.Repair_STATE_RUNNING {
		last, err := follow(ctx, flags, response.GetRepair())
		if err != nil {
			return err
		}
		response.Repair = last
	}
	if err := printRepair(&flags.Flags, response, response.GetRepair()); err != nil {
		return client.CannotPrint("repair", err)
	}
	if flags.dryRun {
		return nil
	}
	return verdict(response.GetRepair())
}

func isTimeout(err error) bool {
	var failed *exit.Error
	return errors.As(err, &failed) && status.Code(failed.Err) == codes.DeadlineExceeded
}

// startedRepair returns the repair that a call began whose answer came too late. If it began none,
// the error is that of the call.
func startedRepair(ctx context.Context, flags *writeFlags, plan string, lost error) (*bootstrapv1.ApplyRepairPlanResponse, error) {
	response, err := getPlan(ctx, &flags.Flags, plan)
	if err != nil || response.GetRepairPlan().GetRepair() == "" {
		return nil, lost
	}
	repair, err := getRepair(ctx, &flags.Flags, response.GetRepairPlan().GetRepair())
	if err != nil {
		return nil, lost
	}
	return &bootstrapv1.ApplyRepairPlanResponse{Repair: repair.GetRepair(), Sources: repair.GetSources()}, nil
}

// confirm asks on the terminal. It returns nil for "y" and "yes" only.
func confirm(ctx context.Context, streams printer.Streams) error {
	fmt.Fprint(streams.Err, "This writes the steps of the plan to the cluster. Continue? [y/N] ")
	answers := make(chan string, 1)
	go func() { // a read of standard input cannot be cancelled; it ends with the process at the latest
		line, err := bufio.NewReader(streams.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answers <- line
	}()
	select {
	case <-ctx.Done():
		return client.Interrupted()
	case answer := <-answers:
		if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
			return nil
		}
		return &exit.Error{Code: exit.Interrupted, Summary: "nothing was written"}
	}
}

// verdict returns the exit code of a repair.
func verdict(repair *bootstrapv1.Repair) error {
	switch repair.GetState() {
	case bootstrapv1.Repair_STATE_SUCCEEDED:
		return nil
	case bootstrapv1.Repair_STATE_FAILED:
		failed := 0
		for _, step := range repair.GetSteps() {
			if printer.Outcome(step.GetChange().GetOutcome()).Text == "failed" {
				failed++
			}
		}
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%d of %s failed", failed, printer.Count(len(repair.GetSteps()), "step"))}
	case bootstrapv1.Repair_STATE_CANCELLED:
		return &exit.Error{Code: exit.Findings, Summary: printer.Sanitize("the repair was cancelled by " + printer.Caller(repair.GetCanceller()))}
	default:
		return &exit.Error{Code: exit.Undetermined, Summary: printer.Sanitize("the repair has not ended; follow it with: trivet repair list -w, or trivet repair show " + repair.GetName())}
	}
}
