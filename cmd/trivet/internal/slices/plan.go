package slices

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// serviceFlags are the flags and the argument of a command for one Service.
type serviceFlags struct {
	client.Flags

	namespace string
	name      string // the API's name
}

func (f *serviceFlags) register(command *cobra.Command, streams printer.Streams) {
	f.Register(command, streams, "table", "json")
	command.Flags().StringVarP(&f.namespace, "namespace", "n", "", "The namespace of the Service, which NAME then omits.")
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
	command := &cobra.Command{
		Use:   "plan NAMESPACE/NAME",
		Short: "Show what would be written for a Service now, and why",
		Long: `Show what would be written for the EndpointSlices of a Service now, change by change, and why. Nothing is
written.

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
			return plan(command.Context(), streams, &flags)
		},
	}
	flags.register(command, streams)
	return command
}

func plan(ctx context.Context, streams printer.Streams, flags *serviceFlags) error {
	service := ShortName(flags.name)
	response, err := client.Call(ctx, &flags.Flags, "plan for "+service, func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.PlanServiceResponse, error) {
		return gatewayv1.NewSliceServiceClient(conn).PlanService(ctx, &gatewayv1.PlanServiceRequest{Name: flags.name})
	})
	if err != nil {
		return err
	}
	if err := printChanges(streams, &flags.Flags, response, response.GetChanges()); err != nil {
		return client.CannotPrint("plan", err)
	}
	for _, cause := range response.GetWaitingFor() {
		fmt.Fprintln(streams.Err, "waiting: "+printer.Sanitize(cause))
	}
	switch {
	case len(response.GetChanges()) > 0:
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%s to be written for %s", printer.Count(len(response.GetChanges()), "change"), service)}
	case len(response.GetWaitingFor()) > 0:
		return &exit.Error{Code: exit.Undetermined, Summary: "the plan is incomplete: it waits for " + printer.Count(len(response.GetWaitingFor()), "condition")}
	}
	return nil
}

func newReconcileCommand(streams printer.Streams) *cobra.Command {
	var flags serviceFlags
	var dryRun bool
	command := &cobra.Command{
		Use:   "reconcile NAMESPACE/NAME",
		Short: "Write the slices of a Service now",
		Long: `Write the EndpointSlices of a Service now, before queued work, and show the changes. A second run has no
changes.

Exit codes:
  0   The slices are up to date.
  2   They are not, or there is no answer.
  64  The command line is wrong.`,
		Example: "  trivet slices reconcile shop/web\n  trivet slices reconcile shop/web --dry-run",
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.parse(command, args); err != nil {
				return err
			}
			return reconcile(command.Context(), streams, &flags, dryRun)
		},
	}
	flags.register(command, streams)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "Show the changes and write nothing.")
	return command
}

func reconcile(ctx context.Context, streams printer.Streams, flags *serviceFlags, dryRun bool) error {
	service := ShortName(flags.name)
	response, err := client.Call(ctx, &flags.Flags, "reconciliation of "+service, func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.ReconcileServiceResponse, error) {
		return gatewayv1.NewSliceServiceClient(conn).ReconcileService(ctx, &gatewayv1.ReconcileServiceRequest{Name: flags.name, ValidateOnly: dryRun})
	})
	if err != nil {
		return err
	}
	if err := printChanges(streams, &flags.Flags, response, response.GetChanges()); err != nil {
		return client.CannotPrint("changes", err)
	}
	if !dryRun && !response.GetApplied() {
		return &exit.Error{Code: exit.Undetermined, Summary: "not all changes were written for " + service}
	}
	return nil
}

func printChanges(streams printer.Streams, flags *client.Flags, response proto.Message, changes []*statusv1.Change) error {
	if flags.Output == "json" {
		return printer.WriteJSON(streams.Out, response)
	}
	if len(changes) == 0 {
		_, err := fmt.Fprintln(streams.Out, "nothing to write")
		return err
	}
	table := &printer.Table{Colors: streams.Colors(flags.Color), Width: streams.Width()}
	table.AddStyled(printer.Bold, "CHANGE", "SLICE", "REASON", "DETAIL")
	for _, change := range changes {
		verb, style := printer.Verb(change.GetVerb())
		table.Add(printer.Cell{Text: verb, Style: style}, printer.Cell{Text: cmp.Or(change.GetObject().GetName(), "-")},
			printer.Cell{Text: cmp.Or(change.GetReason(), "-")}, printer.Cell{Text: change.GetDetail()})
	}
	_, err := table.WriteTo(streams.Out)
	return err
}
