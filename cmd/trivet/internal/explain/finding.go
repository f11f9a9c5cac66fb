package explain

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

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
		Short: "Explain what a finding was concluded from, and what would mend it",
		Long: `Explain what a finding was concluded from, link by link, who owns the address or port, and what would mend it. The first line says
what is wrong. Marks are those of "trivet explain node".

Exit codes: 0 it is not so any more; 1 it is, or may be; 2 there was no answer; 64 wrong usage.`,
		Example: `  trivet explain finding leaked.node-ports.30080
  trivet findings -o name | xargs -n 1 trivet explain finding`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return explainFinding(command.Context(), streams, &flags, args)
		},
	}
	flags.Register(command, streams, "text", "json")
	command.ValidArgsFunction = findings.Completion(&flags)
	return command
}

func explainFinding(ctx context.Context, streams printer.Streams, flags *client.Flags, args []string) error {
	name, err := nameIn(args, "finding", findings.ParseName)
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
	finding, err := findings.Find(asking, gatewayv1.NewBootstrapServiceClient(conn), name)
	if err != nil {
		return flags.Unanswered(ctx, "answer about "+name, err)
	}
	gist := gist{answer: findingAnswer(finding), well: findings.HasEnded(finding)}
	if err := show(streams, flags, findingStory{Finding: finding}, gist); err != nil {
		return client.Unprinted("explanation", err)
	}
	if flags.Output == "text" {
		if _, err := io.WriteString(streams.Out, findingRemedy(streams.Ink(flags.Color), finding)); err != nil {
			return client.Unprinted("explanation", err)
		}
	}
	if findings.HasEnded(finding) {
		return nil
	}
	return &exit.Error{Code: exit.Findings, Summary: printer.Plain(fmt.Sprintf("%s is %s", findings.ShortName(name), findings.State(finding)))}
}

// findingStory reads a finding as a story. A list of findings has no freshness of its own.
type findingStory struct{ *bootstrapv1.Finding }

// GetFirstBroken returns the place of the first broken link; -1 without one, and when nothing is broken any more.
func (f findingStory) GetFirstBroken() int32 {
	if findings.HasEnded(f.Finding) {
		return -1
	}
	return int32(slices.IndexFunc(f.GetEvidence(), func(link *statusv1.Evidence) bool {
		return link.GetVerdict() == statusv1.Evidence_VERDICT_BROKEN
	}))
}

// GetFreshness implements story.
func (findingStory) GetFreshness() *statusv1.Freshness { return nil }

func findingAnswer(finding *bootstrapv1.Finding) string {
	name, message := findings.ShortName(finding.GetName()), continued(finding.GetMessage())
	if !findings.HasEnded(finding) {
		return name + " is " + findings.State(finding) + ": " + message
	}
	if repair := finding.GetRepairedBy(); repair != "" {
		return name + " was mended by " + repair + "; it said: " + message
	}
	return name + " went away by itself; it said: " + message
}

// findingRemedy is what stands below the chain: whose it is, what would mend it, and where to read on.
func findingRemedy(ink printer.Ink, finding *bootstrapv1.Finding) string {
	var text strings.Builder
	line := func(title, words string) {
		if words != "" {
			text.WriteString(ink.Dye(printer.Strong, title+":") + " " + printer.Plain(words) + "\n")
		}
	}
	if len(finding.GetEvidence()) > 0 {
		text.WriteByte('\n')
	}
	var owners []string
	for _, owner := range finding.GetOwners() {
		owners = append(owners, objectName(owner))
	}
	line("owners", strings.Join(owners, ", "))
	if !findings.HasEnded(finding) {
		line("to mend it", cmp.Or(finding.GetRepair(), "only a person can"))
		if finding.GetState() == bootstrapv1.Finding_STATE_PENDING {
			line("not yet", finding.GetUnsafeReason())
		} else {
			line("not alone", finding.GetUnsafeReason())
		}
	}
	line("read on", findings.Page(finding.GetCode()))
	return text.String()
}
