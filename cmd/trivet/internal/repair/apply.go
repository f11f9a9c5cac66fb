package repair

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// maxTokenBytes is the API's limit.
	maxTokenBytes = 65536
	// applyTimeout is long enough for some hundred sequential writes.
	applyTimeout = time.Minute
)

type applyFlags struct {
	client.Flags

	token string
	yes   bool
}

func newApplyCommand(streams printer.Streams) *cobra.Command {
	flags := applyFlags{Flags: client.Flags{Timeout: applyTimeout}}
	command := &cobra.Command{
		Use:   "apply TOKEN",
		Short: "Apply the plan of a token",
		Long: `Apply the plan of a token from "trivet repair plan". Each step is checked again and written only if its
object has not changed. If any step differs from the plan, nothing is written. After a lost answer, run the
same command again: it continues the repair, or shows the result.

On a terminal the command asks first. Elsewhere it needs --yes.

Exit codes:
  0   Every step is done or not needed.
  1   A step failed.
  2   There is no answer, or the repair has not ended.
  64  The command line is wrong.
  130 You answered no.`,
		Example: "  trivet repair apply eyJ2IjoxLCJmIjpbImxlYWtlZC5ub2RlLXBvcnRzLjMwMDgwIl19",
		RunE: func(command *cobra.Command, args []string) error {
			if err := flags.parse(streams, args); err != nil {
				return err
			}
			return apply(command.Context(), streams, &flags)
		},
	}
	flags.Register(command, streams, "table", "json")
	command.Flags().BoolVarP(&flags.yes, "yes", "y", false, "Write without asking.")
	return command
}

func (f *applyFlags) parse(streams printer.Streams, args []string) error {
	problems := f.Validate()
	switch {
	case len(args) != 1:
		problems = append(problems, fmt.Errorf("repair apply takes one token, got %d arguments", len(args)))
	case args[0] == "" || len(args[0]) > maxTokenBytes || strings.ContainsFunc(args[0], func(r rune) bool { return r <= ' ' || r > '~' }):
		problems = append(problems, errors.New("invalid token; `trivet repair plan` prints a token in its last line"))
	default:
		f.token = args[0]
	}
	if !f.yes && !streams.InIsTerminal {
		problems = append(problems, errors.New("cannot ask without a terminal; --yes writes without asking"))
	}
	return exit.UsageError(problems...)
}

func apply(ctx context.Context, streams printer.Streams, flags *applyFlags) error {
	if !flags.yes {
		if err := confirm(ctx, streams); err != nil {
			return err
		}
	}
	response, err := client.Call(ctx, &flags.Flags, "result of the repair", func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.ApplyRepairResponse, error) {
		return gatewayv1.NewBootstrapServiceClient(conn).ApplyRepair(ctx, &gatewayv1.ApplyRepairRequest{Token: flags.token})
	})
	if err != nil {
		return err
	}
	if err := printRepair(streams, &flags.Flags, response); err != nil {
		return client.CannotPrint("repair", err)
	}
	return verdict(response.GetRepair())
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

func printRepair(streams printer.Streams, flags *client.Flags, response *gatewayv1.ApplyRepairResponse) error {
	if flags.Output == "json" {
		return printer.WriteJSON(streams.Out, response)
	}
	repair := response.GetRepair()
	if err := printSteps(streams, flags, repair.GetSteps()); err != nil {
		return err
	}
	counts := map[string]int{}
	for _, step := range repair.GetSteps() {
		counts[stepState(step.GetState())]++
	}
	summary := fmt.Sprintf("%s: %s: %s", cmp.Or(repair.GetName(), "repair"), printer.Count(len(repair.GetSteps()), "step"),
		printer.Counts(counts, "done", "not needed", "failed", "pending"))
	fmt.Fprintln(streams.Err, printer.Sanitize(summary))
	return nil
}

// verdict returns the exit code of a repair.
func verdict(repair *bootstrapv1.Repair) error {
	failed := 0
	for _, step := range repair.GetSteps() {
		if step.GetState() == bootstrapv1.RepairStep_STATE_FAILED {
			failed++
		}
	}
	switch {
	case failed > 0:
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%d of %s failed", failed, printer.Count(len(repair.GetSteps()), "step"))}
	case !repair.GetComplete():
		return &exit.Error{Code: exit.Undetermined, Summary: "the repair has not ended; run the same command again to continue"}
	default:
		return nil
	}
}
