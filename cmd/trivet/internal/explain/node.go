package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NewCommand makes `trivet explain`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:           "explain",
		Short:         "Explain why something is as it is",
		Long:          "Explain why something is as it is, link by link, with where each was found and how old it is.",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("%q cannot be explained; node, pod and finding can", args[0]))
			}
			return exit.UsageError(errors.New("say what to explain: node NAME, pod NAME --service SERVICE, or finding NAME"))
		},
		Args: cobra.ArbitraryArgs,
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err) })
	command.AddCommand(newNodeCommand(streams), newPodCommand(streams), newFindingCommand(streams))
	return command
}

func newNodeCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "node NAME",
		Short: "Explain why a Node is held for healthy or not",
		Long: `Explain why a Node is held for healthy or not: from its heartbeat by way of its Lease, conditions and taints to the eviction of
its pods. The first line answers the question. Each link has a mark:

  √  as it should be
  ‼  doubtful: nothing follows from it yet
  ×  broken: what comes below is its consequence
  ?  could not be looked at
  ·  does not apply to this Node

The first broken link, with ▶ before it, is where to look; → says what to do there.

Exit codes: 0 the chain is whole; 1 it is broken, or the Node is not well; 2 a link could not be looked at, or there was no answer;
64 wrong usage.`,
		Example: `  trivet explain node node-7
  trivet nodes --health unknown -o name | xargs -n 1 trivet explain node
  trivet explain node node-7 -o json | jq '.evidence[.firstBroken]'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return explainNode(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text", "json")
	command.ValidArgsFunction = nodes.Completion(&flags)
	return command
}

func explainNode(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	name, err := nameIn(args, "Node", nodes.ParseName)
	if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
		return err
	}
	conn, err := flags.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	asking, cancel := context.WithTimeout(ctx, flags.Timeout)
	defer cancel()
	response, err := gatewayv1.NewNodeServiceClient(conn).ExplainNodeHealth(asking, &gatewayv1.ExplainNodeHealthRequest{Name: name})
	if err != nil {
		return flags.Unanswered(ctx, "explanation of "+name, err)
	}
	gist := gist{answer: answer(response), well: nodes.IsWell(response.GetNode().GetHealth()), read: "the node"}
	if err := show(streams, flags, response, gist); err != nil {
		return client.Unprinted("explanation", err)
	}
	return verdict(response)
}

// nameIn reads the one name that is an explanation's argument.
func nameIn(args []string, noun string, parse func(string) (string, error)) (string, error) {
	if len(args) != 1 {
		return "", fmt.Errorf("explain %s takes the name of one %s, got %q", strings.ToLower(noun), noun, args)
	}
	return parse(args[0])
}

// message is a story as the API has it.
type message interface {
	story
	proto.Message
}

func show(streams printer.Streams, flags *client.Flags, response message, gist gist) error {
	if flags.Output == "json" {
		return printer.WriteJSON(streams.Out, response)
	}
	_, err := io.WriteString(streams.Out, chain{ink: streams.Ink(flags.Color), width: streams.Width(), now: time.Now()}.draw(response, gist))
	return err
}
