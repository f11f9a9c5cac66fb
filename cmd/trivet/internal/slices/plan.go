package slices

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// oneService are the flags of a command about one Service, and its name.
type oneService struct {
	client.Flags

	namespace, name string
}

func (o *oneService) register(command *cobra.Command, streams printer.Streams) {
	o.Register(command, streams, "table", "json")
	command.Flags().StringVarP(&o.namespace, "namespace", "n", "", "The Service's namespace; the name may then stand without it.")
}

func (o *oneService) parse(what string, args []string) error {
	problems := append(o.Validate(), checkNamespace(o.namespace))
	if len(args) != 1 {
		return exit.UsageError(append(problems, fmt.Errorf("slices %s takes the name of one Service, got %q", what, args))...)
	}
	var err error
	o.name, err = ParseName(args[0], o.namespace)
	return exit.UsageError(append(problems, err)...)
}

func newPlanCommand(streams printer.Streams) *cobra.Command {
	var opts oneService
	command := &cobra.Command{
		Use:   "plan NAMESPACE/NAME",
		Short: "Show what would be written for a Service now, and why",
		Long: `Show what would be written for a Service's EndpointSlices now, change by change, and why. Nothing is written.

Exit codes, as those of kubectl diff: 0 nothing is to be done; 1 there are changes; 2 there is no answer, or nothing can be said yet
because something is waited for; 64 wrong usage.`,
		Example:       "  trivet slices plan shop/web\n  trivet slices plan web -n shop -o json",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return plan(command.Context(), streams, &opts, args)
		},
	}
	opts.register(command, streams)
	return command
}

func plan(ctx context.Context, streams printer.Streams, opts *oneService, args []string) error {
	if err := opts.parse("plan", args); err != nil {
		return err
	}
	response, err := client.Ask(ctx, &opts.Flags, gatewayv1.NewSliceServiceClient, func(ctx context.Context, client gatewayv1.SliceServiceClient) (*gatewayv1.PlanServiceResponse, error) {
		return client.PlanService(ctx, &gatewayv1.PlanServiceRequest{Name: opts.name})
	})
	if err != nil {
		return opts.Unanswered(ctx, "plan for "+ShortName(opts.name), err)
	}
	if err := show(streams, &opts.Flags, response, response.GetChanges()); err != nil {
		return client.Unprinted("plan", err)
	}
	for _, sentence := range response.GetWaitingFor() {
		fmt.Fprintln(streams.Err, "waiting: "+printer.Plain(sentence))
	}
	switch {
	case len(response.GetChanges()) > 0:
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%s to be written for %s", printer.Count(len(response.GetChanges()), "change"), ShortName(opts.name))}
	case len(response.GetWaitingFor()) > 0:
		return &exit.Error{Code: exit.Undetermined, Summary: "the plan is not complete: " + printer.Count(len(response.GetWaitingFor()), "thing") + " waited for"}
	}
	return nil
}

func newReconcileCommand(streams printer.Streams) *cobra.Command {
	var opts oneService
	var only bool
	command := &cobra.Command{
		Use:   "reconcile NAMESPACE/NAME",
		Short: "Bring a Service's slices in line now",
		Long: `Bring a Service's EndpointSlices in line now, before all that waits, and show what was written. Again right after, nothing is left
to do.

Exit codes: 0 the slices are in line; 2 they are not, or there is no answer; 64 wrong usage.`,
		Example:       "  trivet slices reconcile shop/web\n  trivet slices reconcile shop/web --dry-run",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return reconcile(command.Context(), streams, &opts, only, args)
		},
	}
	opts.register(command, streams)
	command.Flags().BoolVar(&only, "dry-run", false, "Only show what would be written.")
	return command
}

func reconcile(ctx context.Context, streams printer.Streams, opts *oneService, only bool, args []string) error {
	if err := opts.parse("reconcile", args); err != nil {
		return err
	}
	response, err := client.Ask(ctx, &opts.Flags, gatewayv1.NewSliceServiceClient, func(ctx context.Context, client gatewayv1.SliceServiceClient) (*gatewayv1.ReconcileServiceResponse, error) {
		return client.ReconcileService(ctx, &gatewayv1.ReconcileServiceRequest{Name: opts.name, ValidateOnly: only})
	})
	if err != nil {
		return opts.Unanswered(ctx, "reconciliation of "+ShortName(opts.name), err)
	}
	if err := show(streams, &opts.Flags, response, response.GetChanges()); err != nil {
		return client.Unprinted("changes", err)
	}
	if !only && !response.GetApplied() {
		return &exit.Error{Code: exit.Undetermined, Summary: "not all of it was written for " + ShortName(opts.name)}
	}
	return nil
}

func show(streams printer.Streams, flags *client.Flags, response proto.Message, changes []*statusv1.Change) error {
	if flags.Output == "json" {
		return printer.WriteJSON(streams.Out, response)
	}
	if len(changes) == 0 {
		_, err := fmt.Fprintln(streams.Out, "nothing to write")
		return err
	}
	rows := &printer.Table{Ink: streams.Ink(flags.Color), Width: streams.Width()}
	rows.AddAll(printer.Strong, "CHANGE", "SLICE", "REASON", "DETAIL")
	for _, change := range changes {
		word, tone := printer.Verb(change.GetVerb())
		rows.Add(printer.Cell{Text: word, Tone: tone}, printer.Cell{Text: cmp.Or(change.GetObject().GetName(), "-")},
			printer.Cell{Text: cmp.Or(change.GetReason(), "-")}, printer.Cell{Text: change.GetDetail()})
	}
	_, err := rows.WriteTo(streams.Out)
	return err
}
