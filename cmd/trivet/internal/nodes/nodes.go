package nodes

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// options are the command's flags and its argument.
type options struct {
	client.Flags

	name      string // as the API has it; empty for all
	zone      string
	health    string
	watch     bool
	noHeaders bool
}

// NewCommand makes `trivet nodes`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	var opts options
	command := &cobra.Command{
		Use:   "nodes [NAME]",
		Short: "Show how healthy the Nodes of a cluster are",
		Long: `Show how healthy the Nodes of a cluster are, as leasesvc believes that judges them.

A Node is ready or not-ready as it says itself; suspect when signs of life are missing; silent when its deadline has passed;
unknown when it was declared so; starting while it has no Ready condition yet.

SEEN is how long ago the last sign of life was, or "live" where signs come all the time and only their end is told.

Standard error tells how many Nodes there are of each health, which zones are disrupted, and which replicas' parts are missing.
Ages are by this machine's clock. On a terminal reasons are cut to its width; -o wide cuts nothing.

Exit codes: 0 all Nodes listed are well; 1 some are not-ready, silent or unknown; 2 none is, but parts are missing, or no list
could be had; 64 wrong usage.`,
		Example: `  trivet nodes
  trivet nodes --health unknown
  trivet nodes --zone eu-west-1:eu-west-1a -w
  trivet nodes --health silent -o name | xargs -n 1 trivet explain node
  trivet nodes -o json | jq -r '.nodes[] | select(.heldBy != "") | .name'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return run(command.Context(), streams, &opts, args)
		},
	}
	opts.registerFlags(command, streams)
	command.ValidArgsFunction = Completion(&opts.Flags)
	return command
}

func (o *options) registerFlags(command *cobra.Command, streams printer.Streams) {
	o.Register(command, streams, "table", "wide", "json", "name")
	fs := command.Flags()
	fs.StringVar(&o.zone, "zone", "", "Only Nodes of this zone, as the ZONE column has it.")
	fs.StringVar(&o.health, "health", "", "Only Nodes of this health: "+strings.Join(words(), ", ")+".")
	fs.BoolVarP(&o.watch, "watch", "w", false, "Go on showing them: in place on a terminal, else a line for each change. Signs of life are no change.")
	fs.BoolVar(&o.noHeaders, "no-headers", false, "Leave the titles of the columns out.")
	client.Complete(command, "health", words()...)
}

// Completion offers the names of Nodes to the shell.
func Completion(flags *client.Flags) cobra.CompletionFunc {
	connected := func(flags *client.Flags) (list.Source[*leasev1.NodeHealth], func(), error) { return connect(flags) }
	return list.Completion(flags, kind(), connected, ShortName)
}

// ParseName reads a Node's name as Kubernetes or as the API has it, and returns the API's.
func ParseName(text string) (string, error) {
	name := strings.TrimPrefix(text, "nodes/")
	if len(name) > 253 || !regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`).MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a Node: lower-case letters, digits, dots and dashes, at most 253", text)
	}
	return "nodes/" + name, nil
}

func (o *options) parse(args []string) error {
	problems := o.Validate()
	if o.health != "" {
		problems = append(problems, client.OneOf("--health", o.health, words()...))
	}
	if len(o.zone) > 256 {
		problems = append(problems, errors.New("--zone: longer than 256 bytes, which no zone is"))
	}
	switch {
	case len(args) > 1:
		problems = append(problems, fmt.Errorf("nodes takes one name at most, got %q", args))
	case len(args) == 1:
		var err error
		o.name, err = ParseName(args[0])
		problems = append(problems, err)
		if o.zone != "" || o.health != "" {
			problems = append(problems, errors.New("--zone and --health choose among all Nodes; leave them out with a name"))
		}
	}
	return exit.UsageError(problems...)
}

func run(ctx context.Context, streams printer.Streams, opts *options, args []string) error {
	if err := opts.parse(args); err != nil {
		return err
	}
	nodes, leave, err := connect(&opts.Flags)
	if err != nil {
		return err
	}
	defer leave()
	nodes.zone, nodes.health = opts.zone, healthOf(opts.health)
	session := &list.Session[*leasev1.NodeHealth]{
		Flags: opts.Flags, Streams: streams, NoHeaders: opts.noHeaders, Kind: kind(), Source: nodes, Wanted: opts.wants,
	}
	return session.Run(ctx, opts.name, opts.watch)
}

func (o *options) wants(node *leasev1.NodeHealth) bool {
	return (o.name == "" || o.name == node.GetName()) && (o.health == "" || o.health == Word(node.GetHealth()))
}
