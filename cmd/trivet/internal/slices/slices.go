package slices

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// options are the command's flags and its argument.
type options struct {
	client.Flags

	name      string // as the API has it; empty for all
	namespace string
	watch     bool
	noHeaders bool
}

// NewCommand makes `trivet slices`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	var opts options
	command := &cobra.Command{
		Use:   "slices [NAMESPACE/NAME]",
		Short: "Show the EndpointSlices of Services and how full they are",
		Long: `Show the EndpointSlices of Services: how many endpoints are ready, how many slices there are of how many that would do, how full
they are, and what the last pass was for and wrote: +created ~updated -deleted.

A Service is kept; failing when its last pass went wrong; contended when another writer keeps undoing what is written; unmanaged
when it has no selector or is an ExternalName.

Ages are by this machine's clock. On a terminal reasons are cut to its width; -o wide cuts nothing.

Exit codes: 0 all Services listed are well; 1 some are failing or contended; 2 none is, but replicas are missing, or no list could
be had; 64 wrong usage.`,
		Example: `  trivet slices
  trivet slices -n shop -w
  trivet slices shop/web -o json
  trivet slices plan shop/web`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			return run(command.Context(), streams, &opts, args)
		},
	}
	opts.registerFlags(command, streams)
	command.ValidArgsFunction = opts.completion()
	command.AddCommand(newPlanCommand(streams), newReconcileCommand(streams))
	return command
}

func (o *options) registerFlags(command *cobra.Command, streams printer.Streams) {
	o.Register(command, streams, "table", "wide", "json", "name")
	fs := command.Flags()
	fs.StringVarP(&o.namespace, "namespace", "n", "", "Only Services of this namespace; a name may then stand without it.")
	fs.BoolVarP(&o.watch, "watch", "w", false, "Go on showing them: in place on a terminal, else a line for each change. Passes that write nothing are no change.")
	fs.BoolVar(&o.noHeaders, "no-headers", false, "Leave the titles of the columns out.")
}

func (o *options) completion() cobra.CompletionFunc {
	connected := func(flags *client.Flags) (list.Source[*slicev1.ServiceSlices], func(), error) {
		services, leave, err := connect(flags)
		services.parent = o.parent()
		return services, leave, err
	}
	return list.Completion(&o.Flags, kind(), connected, func(service *slicev1.ServiceSlices) string {
		return strings.TrimPrefix(ShortName(service.GetName()), o.namespace+"/")
	})
}

// parent is the namespace that is asked for: that of the one Service, if it is one.
func (o *options) parent() string {
	parent, _, _ := strings.Cut(o.name, "/services/")
	if parent == "" && o.namespace != "" {
		parent = "namespaces/" + o.namespace
	}
	return parent
}

func (o *options) parse(args []string) error {
	problems := o.Validate()
	problems = append(problems, checkNamespace(o.namespace))
	switch {
	case len(args) > 1:
		problems = append(problems, fmt.Errorf("slices takes one name at most, got %q", args))
	case len(args) == 1:
		var err error
		o.name, err = ParseName(args[0], o.namespace)
		problems = append(problems, err)
	}
	return exit.UsageError(problems...)
}

func checkNamespace(namespace string) error {
	if namespace == "" || isLabel(namespace) && !strings.HasPrefix(namespace, "-") {
		return nil
	}
	return fmt.Errorf("--namespace=%q: must be lower-case letters, digits and -, at most 63", namespace)
}

func run(ctx context.Context, streams printer.Streams, opts *options, args []string) error {
	if err := opts.parse(args); err != nil {
		return err
	}
	services, leave, err := connect(&opts.Flags)
	if err != nil {
		return err
	}
	defer leave()
	services.parent = opts.parent()
	session := &list.Session[*slicev1.ServiceSlices]{
		Flags: opts.Flags, Streams: streams, NoHeaders: opts.noHeaders, Kind: kind(), Source: services,
		Wanted: func(service *slicev1.ServiceSlices) bool { return opts.name == "" || opts.name == service.GetName() },
	}
	return session.Run(ctx, opts.name, opts.watch)
}
