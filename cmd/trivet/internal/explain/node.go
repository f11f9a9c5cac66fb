// Package explain is `trivet explain`: the evidence of a Node's health, of an endpoint of a
// Service, or of a finding, as a chain in which each link follows from the one above.
//
// The first line answers the question, and ▶ marks the first failed link. The exit code is 1 if a
// link failed or the object needs attention, 2 if no link failed and some could not be read, or if
// there is no answer, else 0. A warning does not change it.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// NewCommand returns `trivet explain`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:   "explain",
		Short: "Explain the state of a Node, an endpoint or a finding",
		Long:  "Explain the state of a Node, an endpoint or a finding, link by link, with the source and age of each link.",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("explain does not know %q; it knows node, endpoint and finding", args[0]))
			}
			return exit.UsageError(errors.New("give node NAME, endpoint POD|ADDRESS --service SERVICE, or finding NAME"))
		},
	}
	command.AddCommand(newNodeCommand(streams), newEndpointCommand(streams), newFindingCommand(streams))
	return command
}

func newNodeCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "node NAME",
		Short: "Explain the health of a Node",
		Long: `Explain the health of a Node: from its heartbeat by way of its Lease, conditions and taints to the eviction
of its Pods. The first line answers the question. Each link has a mark:

  √  OK
  ‼  a warning: nothing follows from it yet
  ×  failed
  ?  could not be read
  ·  does not apply

▶ marks the first failed link; the failed links below it are its consequences. → says what to do there.
"trivet events --for node/NAME" shows what was decided about the Node before.

Exit codes:
  0   No link failed.
  1   A link failed, or the Node needs attention.
  2   No link failed and some could not be read, or there is no answer.
  64  The command line is wrong.`,
		Example: `  trivet explain node node-7
  trivet nodes --health unknown -o name | xargs -r -n 1 trivet explain node
  trivet explain node node-7 -o json | jq '.evidence[.brokenIndex // empty]'`,
		RunE: func(command *cobra.Command, args []string) error {
			return explainNode(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text")
	command.ValidArgsFunction = nodes.Complete(&flags)
	return command
}

func explainNode(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	name, err := parseName(args, "Node", nodes.ParseName)
	if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
		return err
	}
	response, err := client.Call(ctx, flags, "explanation of "+name, func(ctx context.Context, conn grpc.ClientConnInterface) (*nodev1.ExplainNodeHealthResponse, error) {
		return nodev1.NewNodeHealthServiceClient(conn).ExplainNodeHealth(ctx, &nodev1.ExplainNodeHealthRequest{Name: name})
	})
	if err != nil {
		return err
	}
	e := explanation{response: response, evidence: response.GetEvidence(), brokenIndex: response.BrokenIndex, sources: response.GetSources()}
	attention := nodes.NeedsAttention(response.GetNode().GetHealth())
	if err := show(streams, flags, e, headline{text: nodeHeadline(response, e.firstFailed()), attention: attention}); err != nil {
		return client.CannotPrint("explanation", err)
	}
	if e.firstFailed() == nil && attention {
		summary := fmt.Sprintf("%s needs attention: %s", nodes.ShortName(response.GetNode()), nodes.Word(response.GetNode().GetHealth()))
		return &exit.Error{Code: exit.Findings, Summary: printer.Sanitize(summary)}
	}
	return chainVerdict(nodes.ShortName(response.GetNode()), e)
}

// parseName parses the only argument of an explanation.
func parseName(args []string, noun string, parse func(string) (string, error)) (string, error) {
	if len(args) != 1 {
		return "", fmt.Errorf("explain %s takes the name of one %s, got %q", strings.ToLower(noun), noun, args)
	}
	return parse(args[0])
}

// nodeHeadline answers the question in one sentence.
func nodeHeadline(response *nodev1.ExplainNodeHealthResponse, failed *metav1.Evidence) string {
	node := response.GetNode()
	text := nodes.ShortName(node) + " is " + healthPhrase(node.GetHealth())
	if silence := response.GetSilence().AsDuration(); silence > 0 {
		text += ", silent for " + printer.Age(silence)
	}
	if message := cmp.Or(node.GetMessage(), failed.GetMessage()); message != "" {
		text += ": " + asClause(message)
	}
	if held := nodes.Held(node); held != "" {
		text += "; " + held
	}
	return text
}

func healthPhrase(health nodev1.NodeHealth_Health) string {
	switch health {
	case nodev1.NodeHealth_HEALTH_UNSPECIFIED:
		return "of unspecified health"
	case nodev1.NodeHealth_HEALTH_NOT_READY:
		return "not ready"
	case nodev1.NodeHealth_HEALTH_UNKNOWN:
		return "marked Unknown"
	default:
		return nodes.Word(health)
	}
}
