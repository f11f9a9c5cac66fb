package explain

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func newFindingCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "finding NAME",
		Short: "Explain the evidence of a finding, and what would repair it",
		Long: `Explain the evidence of a finding, link by link; its owners; and what would repair it. The first line says
what is wrong. The marks are those of "trivet explain node".

Exit codes:
  0   The finding has ended.
  1   It is open or pending.
  2   There is no answer.
  64  The command line is wrong.`,
		Example: `  trivet explain finding leaked.node-ports.30080
  trivet findings -o name | xargs -n 1 trivet explain finding`,
		RunE: func(command *cobra.Command, args []string) error {
			return explainFinding(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text", "json")
	command.ValidArgsFunction = findings.Complete(&flags)
	return command
}

func explainFinding(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	name, err := parseName(args, "finding", findings.ParseName)
	if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
		return err
	}
	finding, err := client.Call(ctx, flags, "answer about "+name, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.Finding, error) {
		return findings.Get(ctx, gatewayv1.NewBootstrapServiceClient(conn), name)
	})
	if err != nil {
		return err
	}
	err = show(streams, flags, findingExplanation{finding}, headline{text: findingHeadline(finding), healthy: findings.HasEnded(finding)})
	if err == nil && flags.Output == "text" {
		_, err = io.WriteString(streams.Out, findingFooter(streams.Colors(flags.Color), finding))
	}
	if err != nil {
		return client.CannotPrint("explanation", err)
	}
	if findings.HasEnded(finding) {
		return nil
	}
	summary := fmt.Sprintf("%s is %s", findings.ShortName(name), findings.State(finding))
	return &exit.Error{Code: exit.Findings, Summary: printer.Sanitize(summary)}
}

// findingExplanation adapts a finding to explanation.
type findingExplanation struct{ *bootstrapv1.Finding }

// GetFirstBroken returns the index of the first broken link; -1 without one, and for an ended
// finding.
func (f findingExplanation) GetFirstBroken() int32 {
	if findings.HasEnded(f.Finding) {
		return -1
	}
	return int32(slices.IndexFunc(f.GetEvidence(), func(link *statusv1.Evidence) bool {
		return link.GetVerdict() == statusv1.Evidence_VERDICT_BROKEN
	}))
}

// GetFreshness returns nil: a list of findings has no freshness.
func (findingExplanation) GetFreshness() *statusv1.Freshness { return nil }

// findingHeadline says what is wrong in one sentence.
func findingHeadline(finding *bootstrapv1.Finding) string {
	name, message := findings.ShortName(finding.GetName()), asClause(finding.GetMessage())
	switch repair := finding.GetRepairedBy(); {
	case !findings.HasEnded(finding):
		return name + " is " + findings.State(finding) + ": " + message
	case repair != "":
		return name + " was repaired by " + repair + ": " + message
	default:
		return name + " ended by itself: " + message
	}
}

// findingFooter returns the lines below the chain: owners, repair, and the page about the code.
func findingFooter(colors printer.Colors, finding *bootstrapv1.Finding) string {
	var text strings.Builder
	line := func(title, value string) {
		if value != "" {
			text.WriteString(colors.Apply(printer.Bold, title+":") + " " + printer.Sanitize(value) + "\n")
		}
	}
	if len(finding.GetEvidence()) > 0 {
		text.WriteByte('\n')
	}
	var owners []string
	for _, owner := range finding.GetOwners() {
		owners = append(owners, printer.ObjectWithKind(owner))
	}
	line("owners", strings.Join(owners, ", "))
	if !findings.HasEnded(finding) {
		line("repair", cmp.Or(finding.GetRepair(), "manual"))
		if finding.GetState() == bootstrapv1.Finding_STATE_PENDING {
			line("pending", finding.GetUnsafeReason())
		} else {
			line("not automatic", finding.GetUnsafeReason())
		}
	}
	line("documentation", findings.DocPage(finding.GetCode()))
	return text.String()
}
