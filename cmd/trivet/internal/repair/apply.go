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

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// maxToken is what the API takes, in bytes.
	maxToken = 65536
	// applyTimeout is enough for some hundreds of writes one after the other.
	applyTimeout = time.Minute
)

// applyOptions are the command's flags and its argument.
type applyOptions struct {
	client.Flags

	token string
	yes   bool
}

func newApplyCommand(streams printer.Streams) *cobra.Command {
	opts := applyOptions{Flags: client.Flags{Timeout: applyTimeout}}
	command := &cobra.Command{
		Use:   "apply TOKEN",
		Short: "Carry out the plan of a token",
		Long: `Carry out the plan that "trivet repair plan" gave the token for: step by step, each looked at anew and written only if nothing
changes meanwhile. When what would be done now is not what was shown, nothing is written. The same token again goes on where the first
time stopped, or shows what came of it; so after a lost answer, give the same command again.

On a terminal you are asked first. Without one, --yes says that somebody has read the plan.

Exit codes: 0 every step is done, or was not needed; 1 a step failed; 2 there is no answer, or the repair has not ended; 64 wrong
usage; 130 you said no.`,
		Example:       "  trivet repair apply eyJ2IjoxLCJmIjpbImxlYWtlZC5ub2RlLXBvcnRzLjMwMDgwIl19",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return apply(command.Context(), streams, &opts, args)
		},
	}
	opts.Register(command, streams, "table", "json")
	command.Flags().BoolVarP(&opts.yes, "yes", "y", false, "Write without asking.")
	return command
}

func (o *applyOptions) parse(streams printer.Streams, args []string) error {
	problems := o.Validate()
	switch {
	case len(args) != 1:
		problems = append(problems, fmt.Errorf("repair apply takes one token, got %d arguments", len(args)))
	case args[0] == "" || len(args[0]) > maxToken || strings.ContainsFunc(args[0], func(r rune) bool { return r <= ' ' || r > '~' }):
		problems = append(problems, errors.New("that is no token; `trivet repair plan` prints one in its last line"))
	default:
		o.token = args[0]
	}
	if !o.yes && !streams.InIsTerminal {
		problems = append(problems, errors.New("there is no terminal to ask you at; --yes writes without asking"))
	}
	return exit.UsageError(problems...)
}

func apply(ctx context.Context, streams printer.Streams, opts *applyOptions, args []string) error {
	if err := opts.parse(streams, args); err != nil {
		return err
	}
	if !opts.yes {
		if err := confirm(ctx, streams); err != nil {
			return err
		}
	}
	response, err := client.Ask(ctx, &opts.Flags, gatewayv1.NewBootstrapServiceClient, func(ctx context.Context, client gatewayv1.BootstrapServiceClient) (*gatewayv1.ApplyRepairResponse, error) {
		return client.ApplyRepair(ctx, &gatewayv1.ApplyRepairRequest{Token: opts.token})
	})
	if err != nil {
		return opts.Unanswered(ctx, "word about the repair", err)
	}
	if err := showRepair(streams, &opts.Flags, response); err != nil {
		return client.Unprinted("repair", err)
	}
	return verdict(response.GetRepair())
}

// confirm asks the person at the terminal; only a yes is one.
func confirm(ctx context.Context, streams printer.Streams) error {
	fmt.Fprint(streams.Err, "This writes to the cluster what the plan of the token showed. Go on? [y/N] ")
	answers := make(chan string, 1)
	go func() { // nothing ends a read of standard input but its end, or that of the process
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

func showRepair(streams printer.Streams, flags *client.Flags, response *gatewayv1.ApplyRepairResponse) error {
	if flags.Output == "json" {
		return printer.WriteJSON(streams.Out, response)
	}
	if err := showSteps(streams, flags, response.GetRepair().GetSteps()); err != nil {
		return err
	}
	fmt.Fprintln(streams.Err, printer.Plain(tally(response.GetRepair())))
	return nil
}

func tally(repair *bootstrapv1.Repair) string {
	counts := map[bootstrapv1.RepairStep_State]int{}
	for _, step := range repair.GetSteps() {
		counts[step.GetState()]++
	}
	var parts []string
	for _, part := range []struct {
		state bootstrapv1.RepairStep_State
		word  string
	}{
		{state: bootstrapv1.RepairStep_STATE_DONE, word: "done"},
		{state: bootstrapv1.RepairStep_STATE_UNNEEDED, word: "not needed"},
		{state: bootstrapv1.RepairStep_STATE_FAILED, word: "failed"},
		{state: bootstrapv1.RepairStep_STATE_PENDING, word: "to do"},
	} {
		if counts[part.state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[part.state], part.word))
		}
	}
	return fmt.Sprintf("%s: %s: %s", cmp.Or(repair.GetName(), "repair"), printer.Count(len(repair.GetSteps()), "step"), strings.Join(parts, ", "))
}

// verdict turns a repair into the exit code.
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
		return &exit.Error{Code: exit.Undetermined, Summary: "the repair has not ended; the same command again goes on with it"}
	default:
		return nil
	}
}
