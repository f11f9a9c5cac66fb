package repair

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// NewCommand makes `trivet repair`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
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
