// Package explain is `trivet explain`: the evidence of a Node's health, of a Pod's place in a
// Service, or of a finding, as a chain in which each link follows from the one above.
//
// The first line answers the question, and ▶ marks the first broken link. The exit code is 1 if a
// link is broken or the object is not healthy, 2 if no link is broken and some could not be read,
// or if there is no answer, else 0. A doubtful link does not change it.
package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// NewCommand returns `trivet explain`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:   "explain",
		Short: "Explain the state of a Node, a Pod or a finding",
		Long:  "Explain the state of a Node, a Pod or a finding, link by link, with the source and age of each link.",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("explain does not know %q; it knows node, pod and finding", args[0]))
			}
			return exit.UsageError(errors.New("give node NAME, pod NAME --service SERVICE, or finding NAME"))
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err) })
	command.AddCommand(newNodeCommand(streams), newPodCommand(streams), newFindingCommand(streams))
	return command
}

func newNodeCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "node NAME",
		Short: "Explain the health of a Node",
		Long: `Explain the health of a Node: from its heartbeat by way of its Lease, conditions and taints to the eviction
of its Pods. The first line answers the question. Each link has a mark:

  √  good
  ‼  doubtful
  ×  broken
  ?  could not be read
  ·  does not apply

▶ marks the first broken link; the broken links below it are its consequences. → says what to do there.

Exit codes:
  0   No link is broken.
  1   A link is broken, or the Node is not healthy.
  2   No link is broken and some could not be read, or there is no answer.
  64  The command line is wrong.`,
		Example: `  trivet explain node node-7
  trivet nodes --health unknown -o name | xargs -n 1 trivet explain node
  trivet explain node node-7 -o json | jq '.evidence[.firstBroken]'`,
		RunE: func(command *cobra.Command, args []string) error {
			return explainNode(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text", "json")
	command.ValidArgsFunction = nodes.Complete(&flags)
	return command
}

func explainNode(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	name, err := parseName(args, "Node", nodes.ParseName)
	if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
		return err
	}
	response, err := client.Call(ctx, flags, "explanation of "+name, func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.ExplainNodeHealthResponse, error) {
		return gatewayv1.NewNodeServiceClient(conn).ExplainNodeHealth(ctx, &gatewayv1.ExplainNodeHealthRequest{Name: name})
	})
	if err != nil {
		return err
	}
	healthy := nodes.IsHealthy(response.GetNode().GetHealth())
	if err := show(streams, flags, response, headline{text: nodeHeadline(response), healthy: healthy, versionOf: "Node"}); err != nil {
		return client.CannotPrint("explanation", err)
	}
	return nodeVerdict(response, healthy)
}

// parseName parses the only argument of an explanation.
func parseName(args []string, noun string, parse func(string) (string, error)) (string, error) {
	if len(args) != 1 {
		return "", fmt.Errorf("explain %s takes the name of one %s, got %q", strings.ToLower(noun), noun, args)
	}
	return parse(args[0])
}

// nodeHeadline answers the question in one sentence.
func nodeHeadline(response *gatewayv1.ExplainNodeHealthResponse) string {
	node := response.GetNode()
	text := nodes.ShortName(node) + " is " + healthPhrase(node.GetHealth())
	if silence := response.GetSilence().AsDuration(); silence > 0 {
		text += ", silent for " + printer.Age(silence)
	}
	reason := node.GetReason()
	if link := firstBroken(response); reason == "" && link != nil {
		reason = link.GetFinding()
	}
	if reason != "" {
		text += ": " + asClause(reason)
	}
	if cause := node.GetHeldBy(); cause != "" {
		text += "; not marked Unknown: " + cause
	}
	return text
}

func healthPhrase(health leasev1.NodeHealth_Health) string {
	switch health {
	case leasev1.NodeHealth_HEALTH_UNSPECIFIED:
		return "of unspecified health"
	case leasev1.NodeHealth_HEALTH_NOT_READY:
		return "not ready"
	case leasev1.NodeHealth_HEALTH_UNKNOWN:
		return "marked Unknown"
	default:
		return nodes.Word(health)
	}
}

func nodeVerdict(response *gatewayv1.ExplainNodeHealthResponse, healthy bool) error {
	name := nodes.ShortName(response.GetNode())
	if firstBroken(response) == nil && !healthy {
		summary := fmt.Sprintf("%s is not healthy: %s", printer.Sanitize(name), nodes.Word(response.GetNode().GetHealth()))
		return &exit.Error{Code: exit.Findings, Summary: summary}
	}
	return chainVerdict(name, response)
}
