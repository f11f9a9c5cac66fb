// Package repair is `trivet repair`: it plans what would repair findings, applies a plan, and shows
// plans and repairs.
//
// A plan is stored with an etag, and writes nothing. Applying it takes the etag and writes what the
// plan showed, or nothing. On a terminal the commands ask before they write; elsewhere they need
// --yes. A repair continues in the service when the command ends; applying the same plan again
// follows it.
package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

const (
	// callTimeout is long enough for some hundred sequential writes.
	callTimeout = time.Minute
	// maxNames is the API's limit of findings in one plan.
	maxNames = 1000
)

// writeFlags are the flags of the commands that apply a plan.
type writeFlags struct {
	client.Flags

	yes          bool
	dryRun       bool
	waitDuration time.Duration
}

func (f *writeFlags) register(command *cobra.Command, streams printer.Streams) {
	f.Timeout = callTimeout
	f.Register(command, streams, "table")
	fs := command.Flags()
	fs.BoolVarP(&f.yes, "yes", "y", false, "Write without asking.")
	fs.BoolVar(&f.dryRun, "dry-run", false, "Check everything, show the steps and write nothing.")
	fs.DurationVar(&f.waitDuration, "wait-duration", 5*time.Minute, "How long to follow a repair that has not ended. It continues without this command.")
}

func (f *writeFlags) validate(streams printer.Streams) []error {
	problems := f.Validate()
	if f.waitDuration <= 0 {
		problems = append(problems, fmt.Errorf("--wait-duration=%s: must be positive", f.waitDuration))
	}
	if !f.yes && !f.dryRun && !streams.InIsTerminal {
		problems = append(problems, errors.New("cannot ask without a terminal; --yes writes without asking, --dry-run does not write"))
	}
	return problems
}

// NewCommand returns `trivet repair`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags writeFlags
	var all bool
	command := &cobra.Command{
		Use:   "repair NAME… | --all",
		Short: "Repair findings: plan, ask, apply, follow",
		Long: `Repair the named findings of "trivet findings", or with --all the open ones: plan what would be written, show
it, ask, write exactly that or nothing, and follow the repair to its end. Findings with REPAIR auto are repaired
without it, unless --auto-repair=off. A repair continues in the service when this command is interrupted.

With -o json and yaml the answer is the repair, or the plan if nothing is written.

Exit codes:
  0   Every step is applied or not needed, or there is nothing to write.
  1   A step failed, or the repair was cancelled; with --dry-run: there are steps.
  2   There is no answer, or the repair has not ended.
  64  The command line is wrong.
  130 You answered no.`,
		Example: `  trivet repair --all
  trivet repair leaked.node-ports.30080 --dry-run
  trivet findings --code leaked -o name | xargs -r trivet repair --yes`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			names, problems := parseNames(args, all)
			if err := exit.UsageError(append(problems, flags.validate(streams)...)...); err != nil {
				return err
			}
			flags.Diff = flags.dryRun
			return repairFindings(command.Context(), streams, &flags, names)
		},
	}
	flags.register(command, streams)
	registerAll(command, &all)
	command.ValidArgsFunction = findings.CompleteMany(&flags.Flags)
	command.AddCommand(newPlanCommand(streams), newApplyCommand(streams), newPlansCommand(streams), NewListCommand(streams, "list"),
		newShowCommand(streams), newCancelCommand(streams))
	return command
}

func registerAll(command *cobra.Command, all *bool) {
	command.Flags().BoolVar(all, "all", false, "All open findings, instead of names.")
}

// parseNames returns the API's names; none for all findings. No names without --all is an error,
// because an empty list of names, as of a pipe, must not mean everything.
func parseNames(args []string, all bool) (names []string, problems []error) {
	switch {
	case len(args) > maxNames:
		problems = append(problems, fmt.Errorf("a plan takes at most %d names, got %d; --all takes all open findings", maxNames, len(args)))
	case len(args) > 0 && all:
		problems = append(problems, errors.New("--all takes no names"))
	case len(args) == 0 && !all:
		problems = append(problems, errors.New("give the names of findings, or --all for the open ones"))
	}
	for _, arg := range args {
		name, err := findings.ParseName(arg)
		problems = append(problems, err)
		names = append(names, name)
	}
	return names, problems
}

// repairFindings plans, asks, applies and follows.
func repairFindings(ctx context.Context, streams printer.Streams, flags *writeFlags, names []string) error {
	response, err := createPlan(ctx, &flags.Flags, names, flags.dryRun)
	if err != nil {
		return err
	}
	plan := response.GetRepairPlan()
	steps := len(plan.GetSteps())
	nothingFollows := flags.dryRun || steps == 0
	if nothingFollows || !flags.yes && flags.Output == "table" { // else the repair shows the same steps
		if err := printPlan(&flags.Flags, response, plan); err != nil {
			return client.CannotPrint("plan", err)
		}
	} else {
		printSkipped(&flags.Flags, plan)
	}
	switch {
	case steps == 0:
		return nil
	case flags.dryRun:
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(steps, "step") + " to be applied"}
	}
	return confirmAndApply(ctx, streams, flags, plan)
}

func createPlan(ctx context.Context, flags *client.Flags, names []string, dryRun bool) (*bootstrapv1.CreateRepairPlanResponse, error) {
	return client.Mutate(ctx, flags, "plan", func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (*bootstrapv1.CreateRepairPlanResponse, error) {
		return bootstrapv1.NewRepairServiceClient(conn).CreateRepairPlan(ctx, &bootstrapv1.CreateRepairPlanRequest{
			Findings: names, ValidateOnly: dryRun, RequestId: requestID,
		})
	})
}

func newPlanCommand(streams printer.Streams) *cobra.Command {
	flags := client.Flags{Timeout: callTimeout, Diff: true}
	var dryRun, all bool
	command := &cobra.Command{
		Use:   "plan NAME… | --all",
		Short: "Store a plan of what would be written to repair findings",
		Long: `Show in order what would be written to repair the named findings, or with --all the open ones, and which are
skipped. Only the plan is stored, until it expires. "trivet repair apply" takes its name, which the last line
has, and stands for exactly these steps.

Exit codes, as those of kubectl diff:
  0   Nothing to write.
  1   Steps.
  2   There is no answer.
  64  The command line is wrong.`,
		Example: `  trivet repair plan --all
  trivet repair plan leaked.node-ports.30080
  trivet repair apply --yes "$(trivet repair plan --all -o name)"`,
		RunE: func(command *cobra.Command, args []string) error {
			names, problems := parseNames(args, all)
			if err := exit.UsageError(append(problems, flags.Validate()...)...); err != nil {
				return err
			}
			return planFindings(command.Context(), &flags, names, dryRun)
		},
	}
	flags.Register(command, streams, "table", "name")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "Show the plan and do not store it.")
	registerAll(command, &all)
	command.ValidArgsFunction = findings.CompleteMany(&flags)
	return command
}

func planFindings(ctx context.Context, flags *client.Flags, names []string, dryRun bool) error {
	response, err := createPlan(ctx, flags, names, dryRun)
	if err != nil {
		return err
	}
	plan := response.GetRepairPlan()
	if err := printPlan(flags, response, plan); err != nil {
		return client.CannotPrint("plan", err)
	}
	if steps := len(plan.GetSteps()); steps > 0 {
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(steps, "step") + " to be applied"}
	}
	return nil
}
