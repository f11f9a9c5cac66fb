package repair

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// maxNames is how many findings the API takes at once.
const maxNames = 1000

func newPlanCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "plan [NAME…]",
		Short: "Show what would be written to mend findings, and why",
		Long: `Show, in order, what would be written to mend the findings named, or all that are open, and what of them is left. Nothing is
written. The token at the end is for "trivet repair apply"; it stands for exactly these steps, and expires.

Exit codes, as those of kubectl diff: 0 there is nothing to write; 1 there are steps; 2 there is no answer; 64 wrong usage.`,
		Example: `  trivet repair plan
  trivet repair plan leaked.node-ports.30080
  trivet repair apply --yes "$(trivet repair plan -o token)"`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return plan(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "table", "json", "token")
	command.ValidArgsFunction = findings.Completion(&flags)
	return command
}

func plan(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	names, err := parseNames(flags, args)
	if err != nil {
		return err
	}
	response, err := client.Ask(ctx, flags, gatewayv1.NewBootstrapServiceClient, func(ctx context.Context, client gatewayv1.BootstrapServiceClient) (*gatewayv1.PlanRepairResponse, error) {
		return client.PlanRepair(ctx, &gatewayv1.PlanRepairRequest{Names: names})
	})
	if err != nil {
		return flags.Unanswered(ctx, "plan", err)
	}
	if err := showPlan(streams, flags, response); err != nil {
		return client.Unprinted("plan", err)
	}
	if steps := len(response.GetSteps()); steps > 0 {
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(steps, "step") + " to be taken"}
	}
	return nil
}

func parseNames(flags *client.Flags, args []string) ([]string, error) {
	problems := flags.Validate()
	if len(args) > maxNames {
		problems = append(problems, fmt.Errorf("repair plan takes %d names at most, got %d; without any it takes all that are open", maxNames, len(args)))
	}
	var names []string
	for _, arg := range args {
		name, err := findings.ParseName(arg)
		problems = append(problems, err)
		names = append(names, name)
	}
	return names, exit.UsageError(problems...)
}

func showPlan(streams printer.Streams, flags *client.Flags, response *gatewayv1.PlanRepairResponse) error {
	switch flags.Output {
	case "json":
		return printer.WriteJSON(streams.Out, response)
	case "token":
		if response.GetToken() == "" {
			return nil
		}
		_, err := fmt.Fprintln(streams.Out, printer.Plain(response.GetToken()))
		return err
	}
	if err := showSteps(streams, flags, response.GetSteps()); err != nil {
		return err
	}
	for _, finding := range response.GetLeft() {
		why := cmp.Or(finding.GetUnsafeReason(), finding.GetMessage(), "nothing that could be written would mend it")
		fmt.Fprintf(streams.Err, "left: %s: %s\n", printer.Plain(findings.ShortName(finding.GetName())), printer.Plain(why))
	}
	if more := response.GetLeftOmitted(); more > 0 {
		fmt.Fprintf(streams.Err, "left: %d more; `trivet findings` lists them\n", more)
	}
	if response.GetToken() != "" {
		fmt.Fprintf(streams.Err, "to apply it%s: trivet repair apply %s\n", until(response), printer.Plain(response.GetToken()))
	}
	return nil
}

// until says the moment and not the time that is left: somebody may come back to it later.
func until(response *gatewayv1.PlanRepairResponse) string {
	if response.GetExpireTime() == nil {
		return ""
	}
	return ", until " + response.GetExpireTime().AsTime().UTC().Format(time.DateTime) + " UTC"
}
