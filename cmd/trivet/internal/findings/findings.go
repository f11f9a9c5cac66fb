// Package findings is `trivet findings`: what is wrong with allocated addresses and ports.
//
// Not healthy, with exit code 1, is an open finding. A pending one may end by itself. `trivet
// repair plan` shows what would repair a finding, `trivet explain finding` its evidence, and
// docs/findings has a page for each code. Package list has the rules of lists and watches.
package findings

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NewCommand returns `trivet findings`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var code string
	var ended bool
	return list.NewCommand(streams, list.Command[*bootstrapv1.Finding]{
		Flags: &flags,
		Use:   "findings [NAME]",
		Short: "Show what is wrong with allocated addresses and ports",
		Long: `Show what is wrong with the addresses and ports of Services: used and not allocated, allocated and not used,
used twice.

A finding is pending until it was seen often enough, then open. With --ended, repaired findings and those
that ended by themselves (gone) are listed too. REPAIR is

  auto    if the service repairs it by itself, unless --auto-repair=off;
  plan    if a person can apply a plan of "trivet repair plan";
  manual  if only a person can change it;
  -       while it is pending, and after its end.

"trivet explain finding" shows the evidence; docs/findings has a page for each code.`,
		ExitOne: "A finding is open.",
		Example: `  trivet findings
  trivet findings -w
  trivet findings --code leaked -o name | xargs trivet repair plan
  trivet findings --ended -o json | jq -r '.findings[] | select(.repairedBy != "") | .name'`,
		NotChanges: "Further observations are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringVar(&code, "code", "", "Only findings of this code: "+strings.Join(codeWords(), ", ")+".")
			fs.BoolVar(&ended, "ended", false, "Add ended findings, as long as the service keeps them.")
			client.CompleteFlag(command, "code", codeWords()...)
		},
		Filters: []string{"code"},
		Validate: func() []error {
			var problems []error
			if code != "" {
				problems = append(problems, client.OneOf("--code", code, codeWords()...))
			}
			if ended && flags.Watch {
				problems = append(problems, errors.New("--ended: cannot be combined with --watch, which shows how open findings end"))
			}
			return problems
		},
		ParseName: ParseName,
		ShortName: shortNameOf,
		Kind:      kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.Finding] {
			return source{client: gatewayv1.NewBootstrapServiceClient(conn), code: codeOf(code), ended: ended}
		},
		Selects: func(finding *bootstrapv1.Finding) bool { return code == "" || code == codeWord(finding.GetCode()) },
	})
}

// Complete completes the name of a finding.
func Complete(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, kind, func(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.Finding] {
		return source{client: gatewayv1.NewBootstrapServiceClient(conn)}
	}, shortNameOf)
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

// DocPage returns the path of the page about a code; empty for an unknown code.
func DocPage(code bootstrapv1.Finding_Code) string {
	if _, known := bootstrapv1.Finding_Code_name[int32(code)]; !known || code == bootstrapv1.Finding_CODE_UNSPECIFIED {
		return ""
	}
	return "docs/findings/" + codeWord(code) + ".md"
}

func codeWord(code bootstrapv1.Finding_Code) string { return printer.EnumWord(code, "CODE_") }

// codeWords returns the values of --code, in the order of the API.
func codeWords() []string {
	var words []string
	values := bootstrapv1.Finding_CODE_UNSPECIFIED.Descriptor().Values()
	for i := range values.Len() {
		if code := bootstrapv1.Finding_Code(values.Get(i).Number()); code != bootstrapv1.Finding_CODE_UNSPECIFIED {
			words = append(words, codeWord(code))
		}
	}
	return words
}

// codeOf returns the code of a word; unspecified, which selects all, for the empty word.
func codeOf(word string) bootstrapv1.Finding_Code {
	return bootstrapv1.Finding_Code(bootstrapv1.Finding_Code_value[printer.EnumName(word, "CODE_")])
}

// pageSize is the gateway's limit.
const pageSize = 5000

type source struct {
	list.NoNotes

	client gatewayv1.BootstrapServiceClient
	code   bootstrapv1.Finding_Code
	ended  bool
}

func (s source) Get(ctx context.Context, name string) (*bootstrapv1.Finding, proto.Message, error) {
	finding, err := Get(ctx, s.client, name)
	return finding, finding, err
}

// Get returns an open, pending or ended finding by the API's name. It filters all findings, because
// the API has no RPC for one.
func Get(ctx context.Context, bootstrap gatewayv1.BootstrapServiceClient, name string) (*bootstrapv1.Finding, error) {
	for token := ""; ; {
		response, err := bootstrap.ListFindings(ctx, &gatewayv1.ListFindingsRequest{ShowEnded: true, PageSize: pageSize, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, finding := range response.GetFindings() {
			if finding.GetName() == name {
				return finding, nil
			}
		}
		switch response.GetNextPageToken() {
		case "":
			return nil, rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", "no "+name)
		case token:
			return nil, fmt.Errorf("the gateway returned the page token %q twice", token)
		}
		token = response.GetNextPageToken()
	}
}

func (s source) Page(ctx context.Context, token string) (list.Page[*bootstrapv1.Finding], error) {
	response, err := s.client.ListFindings(ctx, &gatewayv1.ListFindingsRequest{
		Code: s.code, ShowEnded: s.ended, PageSize: pageSize, PageToken: token,
	})
	return list.Page[*bootstrapv1.Finding]{Items: response.GetFindings(), NextToken: response.GetNextPageToken()}, err
}

func (source) Response(all list.Page[*bootstrapv1.Finding]) proto.Message {
	return &gatewayv1.ListFindingsResponse{Findings: all.Items}
}

func (s source) Watch(ctx context.Context) (list.Receive[*bootstrapv1.Finding], error) {
	stream, err := s.client.WatchFindings(ctx, &gatewayv1.WatchFindingsRequest{})
	return list.ReceiveFrom(stream, err, func(response *gatewayv1.WatchFindingsResponse) list.Event[*bootstrapv1.Finding] {
		return list.Event[*bootstrapv1.Finding]{
			Type: list.EventTypeOf(response.GetType()), Item: response.GetFinding(), Missing: response.GetMissing(), Message: response,
		}
	})
}
