package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/inquiry"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NewCommand makes `trivet repair`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams terminal.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:   "repair",
		Short: "Plan what would mend findings, and apply a plan",
		Long: `Plan what would mend the findings that "trivet findings" shows, and apply a plan. What is safe by rule is mended without this,
unless --auto-repair=off.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("repair does not know %q; plan and apply it does", args[0]))
			}
			return exit.UsageError(errors.New("say what to do: plan [NAME…], or apply TOKEN"))
		},
		Args: cobra.ArbitraryArgs,
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err) })
	command.AddCommand(newPlanCommand(streams), newApplyCommand(streams))
	return command
}

// ask asks the gateway once.
func ask[Answer any](ctx context.Context, flags *inquiry.Flags, call func(context.Context, gatewayv1.BootstrapServiceClient) (Answer, error)) (Answer, error) {
	var none Answer
	conn, err := flags.Connect()
	if err != nil {
		return none, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, flags.Timeout)
	defer cancel()
	return call(ctx, gatewayv1.NewBootstrapServiceClient(conn))
}
