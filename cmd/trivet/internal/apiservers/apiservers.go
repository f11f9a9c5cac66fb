package apiservers

import (
	"context"
	"fmt"
	"net/netip"
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
	watch     bool
	noHeaders bool
}

// NewCommand makes `trivet apiservers`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	var opts options
	command := &cobra.Command{
		Use:   "apiservers [ADDRESS]",
		Short: "Show the kube-apiservers and which of them pods are led to",
		Long: `Show the kube-apiservers that are known: whether their /readyz answers ok, whether they are endpoints of the Service
default/kubernetes, and why they are or are not.

SOURCE says where each is known from: its sidecar, kube-apiserver's own key of its lease reconciler (--adopt-master-leases), or
--static-apiserver-address. Ages are by this machine's clock. On a terminal reasons are cut to its width; -o wide cuts nothing.

Exit codes: 0 all are ready and nothing is wrong with their entries; 1 some are not, or none is known; 2 no list could be had; 64
wrong usage.`,
		Example: `  trivet apiservers
  trivet apiservers -w
  trivet apiservers -o json | jq -r '.apiservers[] | select(.published) | .address'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			return run(command.Context(), streams, &opts, args)
		},
	}
	opts.Register(command, streams, "table", "wide", "json", "name")
	fs := command.Flags()
	fs.BoolVarP(&opts.watch, "watch", "w", false, "Go on showing them: in place on a terminal, else a line for each change. Probes that find what the last one found are no change.")
	fs.BoolVar(&opts.noHeaders, "no-headers", false, "Leave the titles of the columns out.")
	command.ValidArgsFunction = list.Completion(&opts.Flags, kind(), connected, func(server *bootstrapv1.APIServer) string { return server.GetAddress() })
	return command
}

func (o *options) parse(args []string) error {
	problems := o.Validate()
	switch {
	case len(args) > 1:
		problems = append(problems, fmt.Errorf("apiservers takes one address at most, got %q", args))
	case len(args) == 1:
		address, err := netip.ParseAddr(strings.TrimPrefix(args[0], prefix))
		if err != nil {
			problems = append(problems, fmt.Errorf("%q is not an IP address", args[0]))
		}
		o.name = prefix + address.Unmap().String()
	}
	return exit.UsageError(problems...)
}

func run(ctx context.Context, streams printer.Streams, opts *options, args []string) error {
	if err := opts.parse(args); err != nil {
		return err
	}
	servers, leave, err := connected(&opts.Flags)
	if err != nil {
		return err
	}
	defer leave()
	session := &list.Session[*bootstrapv1.APIServer]{
		Flags: opts.Flags, Streams: streams, NoHeaders: opts.noHeaders, Kind: kind(), Source: servers,
		Wanted: func(server *bootstrapv1.APIServer) bool { return opts.name == "" || opts.name == server.GetName() },
	}
	return session.Run(ctx, opts.name, opts.watch)
}
