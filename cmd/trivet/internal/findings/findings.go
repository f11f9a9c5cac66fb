// Package findings is `trivet findings`: what is wrong with allocated addresses and ports, and
// which findings are ignored.
//
// An open finding makes the exit code 1. A pending one may end by itself, and an ignored one counts
// as no problem. `trivet repair plan` shows what would repair a finding, `trivet explain finding`
// its evidence, and docs/findings has a page for each code. Package list has the rules of lists and
// watches.
package findings

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	registryv1 "github.com/trivet-dev/trivet/proto/trivet/registry/v1alpha1"
)

// NewCommand returns `trivet findings`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var codes, states []string
	var ended bool
	command := list.NewCommand(streams, list.Command[*bootstrapv1.Finding]{
		Flags:   &flags,
		Use:     "findings [NAME]",
		Aliases: []string{"finding"},
		Short:   "Show what is wrong with allocated addresses and ports",
		Long: `Show what is wrong with the addresses and ports of Services: used and not allocated, allocated and not used,
used twice.

A finding is pending until it was observed often enough, then open, or ignored on request. It ends repaired,
or resolved without a repair; --ended lists ended findings too. REPAIR is

  auto    if the service repairs it by itself, unless --auto-repair=off;
  plan    if a person can apply a plan of "trivet repair";
  manual  if only a person can change it;
  -       while it is pending or ignored, and after its end.

"trivet explain finding" shows the evidence; docs/findings has a page for each code.`,
		ExitOne: "A finding is open.",
		Example: `  trivet findings
  trivet findings -w
  trivet findings --code leaked,orphan -o name | xargs -r trivet repair plan
  trivet findings --ended -o json | jq -r '.findings[] | select(.repairedBy != "") | .name'
  trivet findings ignore duplicate-owner.node-ports.30080 --for 24h --comment "until the migration"`,
		NotChanges: "Further observations are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringSliceVar(&codes, "code", nil, "Only findings of these codes: "+strings.Join(codeWords(), ", ")+"; or as the API writes a code, such as LEAKED.")
			fs.StringSliceVar(&states, "state", nil, "Only findings in these states: "+strings.Join(stateWords(), ", ")+". Default: "+strings.Join(standingWords(), ", ")+".")
			fs.BoolVar(&ended, "ended", false, "Add ended findings, as long as the service remembers them.")
			client.CompleteListFlag(command, "code", codeWords()...)
			client.CompleteListFlag(command, "state", stateWords()...)
		},
		Filters: []string{"code", "state"},
		Validate: func() []error {
			return []error{checkCodes(codes), client.EachOf("--state", states, stateWords()...)}
		},
		ParseName: ParseName,
		ShortName: shortNameOf,
		Kind:      kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.Finding] {
			f := filter{states: printer.EnumsOf[bootstrapv1.Finding_State](selected(states, ended), statePrefix, bootstrapv1.Finding_State_value)}
			for _, code := range codes {
				f.codes = append(f.codes, printer.EnumName(code, ""))
			}
			return source(conn, f)
		},
		Selects: func(finding *bootstrapv1.Finding) bool {
			return slices.Contains(selected(states, ended), State(finding))
		},
	})
	command.AddCommand(newIgnoreCommand(streams), newUnignoreCommand(streams))
	return command
}

// selected returns the states that --state and --ended select.
func selected(states []string, ended bool) []string {
	if len(states) == 0 {
		states = standingWords()
	}
	if ended {
		states = slices.Concat(states, endedWords())
	}
	return states
}

// Complete completes the name of one finding.
func Complete(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, kind, unfiltered, shortNameOf)
}

// CompleteMany completes the names of findings, each once.
func CompleteMany(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteNames(flags, kind, unfiltered, shortNameOf)
}

func unfiltered(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.Finding] {
	return source(conn, filter{})
}

// prefix begins the API's names.
const prefix = "findings/"

// ParseName returns the API's name for a finding's name, with or without "findings/".
func ParseName(text string) (string, error) {
	name := prefix + strings.TrimPrefix(text, prefix)
	if len(name) > 256 || !regexp.MustCompile(`^findings/[-a-z0-9._:]+$`).MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a finding: lower-case letters, digits and -._:, at most 256", text)
	}
	return name, nil
}

// ShortName returns the API's name without "findings/".
func ShortName(name string) string { return strings.TrimPrefix(name, prefix) }

func shortNameOf(finding *bootstrapv1.Finding) string { return ShortName(finding.GetName()) }

// DocPage returns the path of the page about a code; empty for a code of a later version.
func DocPage(code string) string {
	if word := printer.Word(code); slices.Contains(codeWords(), word) {
		return "docs/findings/" + word + ".md"
	}
	return ""
}

// codeWords returns the known values of --code, in the order of the API.
func codeWords() []string { return printer.EnumWords[registryv1.FindingCode]("FINDING_CODE_") }

// checkCodes returns an error for a wrong code. A code as the API writes it may be of a later
// version.
func checkCodes(codes []string) error {
	for _, code := range codes {
		if !regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,62}$`).MatchString(code) {
			if err := client.OneOf("--code", code, codeWords()...); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageSize is the API's limit.
const pageSize = 5000

// filter selects findings. Its zero value selects those that have not ended.
type filter struct {
	codes  []string
	states []bootstrapv1.Finding_State
}

func source(conn grpc.ClientConnInterface, f filter) list.Source[*bootstrapv1.Finding] {
	service := bootstrapv1.NewFindingServiceClient(conn)
	return list.Source[*bootstrapv1.Finding]{
		Get: func(ctx context.Context, name string) (*bootstrapv1.Finding, proto.Message, error) {
			response, err := service.GetFinding(ctx, &bootstrapv1.GetFindingRequest{Name: name})
			return response.GetFinding(), response, err
		},
		Page: func(ctx context.Context, token string) (list.Page[*bootstrapv1.Finding], error) {
			response, err := service.ListFindings(ctx, &bootstrapv1.ListFindingsRequest{
				Codes: f.codes, States: f.states, PageSize: pageSize, PageToken: token,
			})
			return list.PageOf(response, response.GetFindings(), err)
		},
		Response: func(all list.Page[*bootstrapv1.Finding]) proto.Message {
			return &bootstrapv1.ListFindingsResponse{Findings: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*bootstrapv1.Finding], error) {
			stream, err := service.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{Codes: f.codes, States: f.states, ResumeToken: token})
			return watch.ReceiveFrom(stream, err, (*bootstrapv1.WatchFindingsResponse).GetFinding)
		},
	}
}
