package slices

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// serviceFlags are the flags and the argument of a command for one Service.
type serviceFlags struct {
	client.Flags

	namespace string
	name      string // the API's name
}

func (f *serviceFlags) register(command *cobra.Command, streams printer.Streams) {
	f.Register(command, streams, "table", "wide")
	command.Flags().StringVarP(&f.namespace, "namespace", "n", "", "The namespace of the Service, which NAME then omits.")
	command.ValidArgsFunction = complete(&f.Flags, &f.namespace)
	client.CompleteFlagFrom(command, "namespace", completeNamespace(&f.Flags))
}

func (f *serviceFlags) parse(command *cobra.Command, args []string) error {
	problems := append(f.Validate(), checkNamespace(f.namespace))
	if len(args) != 1 {
		return exit.UsageError(append(problems, fmt.Errorf("slices %s takes the name of one Service, got %q", command.Name(), args))...)
	}
	var err error
	f.name, err = ParseName(args[0], f.namespace)
	return exit.UsageError(append(problems, err)...)
}

func newPlanCommand(streams printer.Streams) *cobra.Command {
	var flags serviceFlags
	flags.Diff = true
	command := &cobra.Command{
		Use:   "plan NAMESPACE/NAME",
		Short: "Show what would be written for a Service now, and why",
		Long: `Show what would be written for the EndpointSlices of a Service now, change by change, and why. Nothing is
written. -o wide adds the fields that change. The etag in the last line stands for exactly these changes;
"trivet slices reconcile" takes it.

Exit codes, as those of kubectl diff:
  0   No change.
  1   Changes.
  2   Not determined: no answer, or the plan waits for missing data.
  64  The command line is wrong.`,
		Example: "  trivet slices plan shop/web\n  trivet slices plan web -n shop -o json",
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.parse(command, args); err != nil {
				return err
			}
			return plan(command.Context(), &flags)
		},
	}
	flags.register(command, streams)
	return command
}

func plan(ctx context.Context, flags *serviceFlags) error {
	service := ShortName(flags.name)
	response, err := client.Call(ctx, &flags.Flags, "plan for "+service, func(ctx context.Context, conn grpc.ClientConnInterface) (*slicev1.PlanServiceSlicesResponse, error) {
		return slicev1.NewSliceServiceClient(conn).PlanServiceSlices(ctx, &slicev1.PlanServiceSlicesRequest{Name: flags.name})
	})
	if err != nil {
		return err
	}
	plan := response.GetPlan()
	if err := printPlan(&flags.Flags, response, plan); err != nil {
		return client.CannotPrint("plan", err)
	}
	if changes := len(plan.GetChanges()); changes > 0 {
		if plan.GetEtag() != "" {
			flags.Note(fmt.Sprintf("to write exactly this: trivet slices reconcile %s --etag %s", service, plan.GetEtag()))
		}
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%s to be written for %s", printer.Count(changes, "change"), service)}
	}
	return checkComplete(plan)
}

// checkComplete returns an error for a plan that waits for missing data.
func checkComplete(plan *metav1.Plan) error {
	if reasons := len(plan.GetIncompleteReasons()); reasons > 0 {
		return &exit.Error{Code: exit.Undetermined, Summary: "the plan is incomplete: it waits for " + printer.Count(reasons, "condition")}
	}
	return nil
}

type reconcileFlags struct {
	serviceFlags

	dryRun bool
	etag   string
}

func newReconcileCommand(streams printer.Streams) *cobra.Command {
	var flags reconcileFlags
	command := &cobra.Command{
		Use:   "reconcile NAMESPACE/NAME",
		Short: "Write the slices of a Service now",
		Long: `Write the EndpointSlices of a Service now, before queued work, and show what came of each change. A second
run has no changes. With --etag nothing is written unless the changes are exactly those of the plan with it.

Exit codes:
  0   The slices are up to date; with --dry-run, the changes are shown.
  2   They are not, or there is no answer.
  64  The command line is wrong.`,
		Example: `  trivet slices reconcile shop/web
  trivet slices reconcile shop/web --dry-run
  trivet slices reconcile shop/web --etag "$(trivet slices plan shop/web -o json | jq -r .plan.etag)"`,
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.parse(command, args); err != nil {
				return err
			}
			return reconcile(command.Context(), &flags)
		},
	}
	flags.register(command, streams)
	command.Flags().BoolVar(&flags.dryRun, "dry-run", false, "Check everything, show the changes and write nothing.")
	command.Flags().StringVar(&flags.etag, "etag", "", "Write only the changes of the plan with this etag.")
	return command
}

func reconcile(ctx context.Context, flags *reconcileFlags) error {
	service := ShortName(flags.name)
	response, err := client.Mutate(ctx, &flags.Flags, "reconciliation of "+service, func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (*slicev1.ReconcileServiceSlicesResponse, error) {
		return slicev1.NewSliceServiceClient(conn).ReconcileServiceSlices(ctx, &slicev1.ReconcileServiceSlicesRequest{
			Name: flags.name, Etag: flags.etag, ValidateOnly: flags.dryRun, RequestId: requestID,
		})
	})
	if err != nil {
		if tried := triedPlan(err); tried != nil { // else nothing was written
			_ = printPlan(&flags.Flags, &slicev1.ReconcileServiceSlicesResponse{Plan: tried}, tried) // err is the result
		}
		return err
	}
	if err := printPlan(&flags.Flags, response, response.GetPlan()); err != nil {
		return client.CannotPrint("changes", err)
	}
	if flags.dryRun {
		return nil
	}
	for _, change := range response.GetPlan().GetChanges() {
		if outcome := change.GetOutcome(); outcome != metav1.Change_OUTCOME_APPLIED && outcome != metav1.Change_OUTCOME_NOT_NEEDED {
			return &exit.Error{Code: exit.Undetermined, Summary: "not all changes were written for " + service}
		}
	}
	return checkComplete(response.GetPlan())
}

// triedPlan returns the plan of which a failed call tried the first changes at least; nil if it
// tried none.
func triedPlan(err error) *metav1.Plan {
	failed, ok := errors.AsType[*exit.Error](err)
	if !ok {
		return nil
	}
	for _, detail := range status.Convert(failed.Err).Details() {
		if plan, ok := detail.(*metav1.Plan); ok {
			return plan
		}
	}
	return nil
}

// printPlan writes a plan, and what it waits for to standard error.
func printPlan(flags *client.Flags, response proto.Message, plan *metav1.Plan) error {
	if err := flags.Print(response, func() error { return printChanges(flags, plan.GetChanges()) }); err != nil {
		return err
	}
	for _, reason := range plan.GetIncompleteReasons() {
		flags.Warn("waiting: " + cmp.Or(reason.GetMessage(), reason.GetReason()))
	}
	if plan.GetMode() == metav1.Mode_MODE_SHADOW {
		flags.Warn("mode: shadow: slicesvc compares such plans and does not write them by itself")
	}
	return nil
}

func printChanges(flags *client.Flags, changes []*metav1.Change) error {
	if len(changes) == 0 {
		return flags.PrintLine("nothing to write")
	}
	table := flags.NewTable("CHANGE", "SLICE", "OUTCOME", "REASON", "MESSAGE")
	for _, change := range changes {
		message := change.GetMessage()
		if failure := change.GetError(); failure != "" {
			message = failure
		}
		table.Add(printer.Verb(change.GetVerb()), printer.Cell{Text: cmp.Or(change.GetObject().GetName(), "-")}, printer.Outcome(change.GetOutcome()),
			printer.Cell{Text: cmp.Or(change.GetReason(), "-")}, printer.Cell{Text: message})
		for _, field := range printer.Fields(change) {
			if flags.Output == "wide" {
				table.Add(printer.Cell{}, printer.Cell{}, printer.Cell{}, printer.Cell{}, printer.Cell{Text: "  " + field, Style: printer.Dim})
			}
		}
	}
	return flags.WriteTable(table)
}
