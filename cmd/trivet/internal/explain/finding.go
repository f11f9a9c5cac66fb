package explain

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

func newFindingCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "finding NAME",
		Short: "Explain the evidence of a finding, and what would repair it",
		Long: `Explain the evidence of a finding, link by link; the objects that it is about; and what would repair it. The
first line says what is wrong. The marks are those of "trivet explain node".

Exit codes:
  0   The finding has ended or is ignored.
  1   It is open or pending.
  2   There is no answer.
  64  The command line is wrong.`,
		Example: `  trivet explain finding leaked.node-ports.30080
  trivet findings -o name | xargs -r -n 1 trivet explain finding`,
		RunE: func(command *cobra.Command, args []string) error {
			return explainFinding(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text")
	command.ValidArgsFunction = findings.Complete(&flags)
	return command
}

func explainFinding(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	name, err := parseName(args, "finding", findings.ParseName)
	if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
		return err
	}
	response, err := client.Call(ctx, flags, "answer about "+name, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.ExplainFindingResponse, error) {
		return bootstrapv1.NewFindingServiceClient(conn).ExplainFinding(ctx, &bootstrapv1.ExplainFindingRequest{Name: name})
	})
	if err != nil {
		return err
	}
	finding := response.GetFinding()
	settled := findings.HasEnded(finding) || finding.GetState() == bootstrapv1.Finding_STATE_IGNORED
	e := explanation{response: response, evidence: response.GetEvidence(), brokenIndex: response.BrokenIndex, sources: response.GetSources()}
	if settled {
		e.brokenIndex = nil // a failed link is history, or wanted
	}
	err = show(streams, flags, e, headline{text: findingHeadline(finding), attention: !settled})
	if err == nil && flags.Output == "text" {
		_, err = io.WriteString(streams.Out, findingFooter(streams.Colors(flags.Color), finding))
	}
	if err != nil {
		return client.CannotPrint("explanation", err)
	}
	if settled {
		return nil
	}
	summary := fmt.Sprintf("%s is %s", findings.ShortName(name), findings.State(finding))
	return &exit.Error{Code: exit.Findings, Summary: printer.Sanitize(summary)}
}

// findingHeadline says what is wrong in one sentence.
func findingHeadline(finding *bootstrapv1.Finding) string {
	name, message := findings.ShortName(finding.GetName()), asClause(finding.GetMessage())
	switch repair := finding.GetRepairedBy(); {
	case !findings.HasEnded(finding):
		return name + " is " + findings.State(finding) + ": " + message
	case repair != "":
		return name + " was repaired by " + repair + ": " + message
	case finding.GetState() == bootstrapv1.Finding_STATE_ENDED:
		return name + " has ended: " + message
	default:
		return name + " ended by itself: " + message
	}
}

// findingFooter returns the lines below the chain: objects, repair, and the page about the code.
func findingFooter(colors printer.Colors, finding *bootstrapv1.Finding) string {
	var text strings.Builder
	line := func(title, value string) {
		if value != "" {
			text.WriteString(colors.Apply(printer.Bold, title+":") + " " + printer.Sanitize(value) + "\n")
		}
	}
	text.WriteByte('\n')
	var objects []string
	for _, object := range finding.GetObjects() {
		objects = append(objects, printer.ObjectWithKind(object))
	}
	line("objects", strings.Join(objects, ", "))
	line("ignored", findings.Ignored(finding))
	if !findings.HasEnded(finding) {
		line("repair", cmp.Or(finding.GetRepair(), "manual"))
		if finding.GetState() == bootstrapv1.Finding_STATE_PENDING {
			line("pending", finding.GetRepairModeMessage())
		} else {
			line("not automatic", finding.GetRepairModeMessage())
		}
	}
	line("documentation", findings.DocPage(finding.GetCode()))
	return text.String()
}
