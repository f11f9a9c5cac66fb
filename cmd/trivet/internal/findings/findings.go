package findings

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// options are the command's flags and its argument.
type options struct {
	client.Flags

	name      string // as the API has it; empty for all
	code      string
	ended     bool
	watch     bool
	noHeaders bool
}

// NewCommand makes `trivet findings`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	var opts options
	command := &cobra.Command{
		Use:   "findings [NAME]",
		Short: "Show what is wrong with allocated addresses and ports",
		Long: `Show what is wrong with the addresses and ports that are allocated to Services: used and not allocated, allocated and not used,
used twice.

A finding is pending while it was not seen for long enough to be sure, open when it is so, and with --ended also repaired, or gone
by itself. MEND says who may mend it: "alone" the service does so itself unless --auto-repair=off; "on request" there is a plan,
which a person applies; "by hand" only a person can; "not yet" while it is pending. "trivet repair plan" shows what would be written, "trivet explain finding" what
a finding was concluded from; docs/findings has a page for each code.

Exit codes: 0 nothing is open; 1 something is; 2 it could not be found out; 64 wrong usage.`,
		Example: `  trivet findings
  trivet findings -w
  trivet findings --code leaked -o name | xargs trivet repair plan
  trivet findings --ended -o json | jq -r '.findings[] | select(.repairedBy != "") | .name'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			return run(command.Context(), streams, &opts, args)
		},
	}
	opts.Register(command, streams, "table", "wide", "json", "name")
	fs := command.Flags()
	fs.StringVar(&opts.code, "code", "", "Only findings of this code: "+strings.Join(words(), ", ")+".")
	fs.BoolVar(&opts.ended, "ended", false, "Also those that have ended, as far as they are remembered.")
	fs.BoolVarP(&opts.watch, "watch", "w", false, "Go on showing them: in place on a terminal, else a line for each change. Being seen again is no change.")
	fs.BoolVar(&opts.noHeaders, "no-headers", false, "Leave the titles of the columns out.")
	client.Complete(command, "code", words()...)
	command.ValidArgsFunction = Completion(&opts.Flags)
	return command
}

// Completion offers the names of findings to the shell.
func Completion(flags *client.Flags) cobra.CompletionFunc {
	connected := func(flags *client.Flags) (list.Source[*bootstrapv1.Finding], func(), error) {
		return connect(flags)
	}
	return list.Completion(flags, kind(), connected, func(finding *bootstrapv1.Finding) string { return ShortName(finding.GetName()) })
}

func (o *options) parse(args []string) error {
	problems := o.Validate()
	if o.code != "" {
		problems = append(problems, client.OneOf("--code", o.code, words()...))
	}
	if o.ended && o.watch {
		problems = append(problems, errors.New("--ended: a watch shows what is open, and how it ends"))
	}
	switch {
	case len(args) > 1:
		problems = append(problems, fmt.Errorf("findings takes one name at most, got %q", args))
	case len(args) == 1:
		var err error
		o.name, err = ParseName(args[0])
		problems = append(problems, err)
		if o.code != "" {
			problems = append(problems, errors.New("--code chooses among all findings; leave it out with a name"))
		}
	}
	return exit.UsageError(problems...)
}

func run(ctx context.Context, streams printer.Streams, opts *options, args []string) error {
	if err := opts.parse(args); err != nil {
		return err
	}
	findings, leave, err := connect(&opts.Flags)
	if err != nil {
		return err
	}
	defer leave()
	findings.code, findings.ended = codeOf(opts.code), opts.ended
	session := &list.Session[*bootstrapv1.Finding]{
		Flags: opts.Flags, Streams: streams, NoHeaders: opts.noHeaders, Kind: kind(), Source: findings, Wanted: opts.wants,
	}
	return session.Run(ctx, opts.name, opts.watch)
}

func (o *options) wants(finding *bootstrapv1.Finding) bool {
	return (o.name == "" || o.name == finding.GetName()) && (o.code == "" || o.code == Word(finding.GetCode()))
}
