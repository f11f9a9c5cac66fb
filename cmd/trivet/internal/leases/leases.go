package leases

import (
	"cmp"
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
	namespace string
	state     string
	watch     bool
	noHeaders bool
}

// NewCommand makes `trivet leases`. Errors it returns say their exit code, see package exit; it prints none of them itself.
func NewCommand(streams printer.Streams) *cobra.Command {
	var opts options
	command := &cobra.Command{
		Use:   "leases [NAMESPACE/NAME]",
		Short: "Show the sessions of those that beat, and how their Lease objects stand",
		Long: fmt.Sprintf(`Show the sessions of those that beat at leasesvc, and how their Lease objects stand.

A session is alive while beats come in time, suspect when some are missing, and expired when its deadline has passed.
WRITTEN is how long ago the object was written, or why it does not stand as it should; RENEW-AGE is how old the renewTime in it
is, and NEXT-WRITE when it is due again. DUPLICATE names another live holder of the same name, which is refused.
A watch shows "live" for the last beat of a session that is alive, since single beats are not told.

Standard error tells how many there are of each state, and which replicas' parts are missing. Ages are by this machine's clock.

Exit codes: 0 all sessions listed are well; 1 some are expired, have a duplicate, or could not be written %d times running; 2 none
has, but parts are missing, or no list could be had; 64 wrong usage.`, failing),
		Example: `  trivet leases
  trivet leases kube-node-lease/node-7 -o wide
  trivet leases -n kube-node-lease --state expired
  trivet leases -w
  trivet leases -o json | jq -r '.leases[] | select(.write.failures > 0) | .write.lastError'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			return run(command.Context(), streams, &opts, args)
		},
	}
	opts.registerFlags(command, streams)
	connected := func(flags *client.Flags) (list.Source[*leasev1.Lease], func(), error) {
		sessions, leave, err := connect(flags)
		sessions.parent = opts.parent()
		return sessions, leave, err
	}
	command.ValidArgsFunction = list.Completion(&opts.Flags, kind(false), connected, opts.shortName)
	return command
}

func (o *options) registerFlags(command *cobra.Command, streams printer.Streams) {
	o.Register(command, streams, "table", "wide", "json", "name")
	fs := command.Flags()
	fs.StringVarP(&o.namespace, "namespace", "n", "", "Only sessions whose Lease objects are in this namespace; a name may then stand without it.")
	fs.StringVar(&o.state, "state", "", "Only sessions in this state: "+strings.Join(words(), ", ")+".")
	fs.BoolVarP(&o.watch, "watch", "w", false, "Go on showing them: in place on a terminal, else a line for each change. Beats, and writes that succeed, are no change.")
	fs.BoolVar(&o.noHeaders, "no-headers", false, "Leave the titles of the columns out.")
	client.Complete(command, "state", words()...)
}

// shortName is a session's name as the argument has it.
func (o *options) shortName(lease *leasev1.Lease) string {
	namespace, name := split(lease.GetName())
	if namespace == o.namespace {
		return name
	}
	return namespace + "/" + name
}

func (o *options) parent() string {
	if o.namespace == "" {
		return ""
	}
	return "namespaces/" + o.namespace
}

// isNamespace and isName are what the API takes.
func isNamespace(text string) bool {
	return regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,62}$`).MatchString(text)
}
func isName(text string) bool { return regexp.MustCompile(`^[-a-z0-9.]{1,253}$`).MatchString(text) }

func (o *options) parse(args []string) error {
	problems := o.Validate()
	if o.namespace != "" && !isNamespace(o.namespace) {
		problems = append(problems, fmt.Errorf("--namespace=%q: must be lower-case letters, digits and -, at most 63", o.namespace))
	}
	if o.state != "" {
		problems = append(problems, client.OneOf("--state", o.state, words()...))
	}
	switch {
	case len(args) > 1:
		problems = append(problems, fmt.Errorf("leases takes one name at most, got %q", args))
	case len(args) == 1:
		problems = append(problems, o.parseName(args[0]))
		if o.state != "" {
			problems = append(problems, errors.New("--state chooses among all sessions; leave it out with a name"))
		}
	}
	return exit.UsageError(problems...)
}

// parseName reads NAMESPACE/NAME, NAME with --namespace, or the API's name as -o name prints it.
func (o *options) parseName(text string) error {
	namespace, name, found := strings.Cut(text, "/")
	if strings.HasPrefix(text, "namespaces/") {
		namespace, name = split(text)
	} else if !found {
		namespace, name = o.namespace, text
	}
	switch {
	case namespace == "":
		return fmt.Errorf("%q: give NAMESPACE/NAME, or the namespace with -n", text)
	case o.namespace != "" && namespace != o.namespace:
		return fmt.Errorf("%q is not in the namespace of --namespace=%s", text, o.namespace)
	case !isNamespace(namespace) || !isName(name):
		return fmt.Errorf("%q is not the name of a Lease: NAMESPACE/NAME, of lower-case letters, digits, dots and dashes", text)
	}
	o.namespace, o.name = cmp.Or(o.namespace, namespace), "namespaces/"+namespace+"/leases/"+name
	return nil
}

func run(ctx context.Context, streams printer.Streams, opts *options, args []string) error {
	if err := opts.parse(args); err != nil {
		return err
	}
	sessions, leave, err := connect(&opts.Flags)
	if err != nil {
		return err
	}
	defer leave()
	sessions.parent = opts.parent()
	sessions.state = leasev1.Lease_State(leasev1.Lease_State_value["STATE_"+strings.ToUpper(opts.state)])
	session := &list.Session[*leasev1.Lease]{
		Flags: opts.Flags, Streams: streams, NoHeaders: opts.noHeaders, Kind: kind(opts.namespace != ""), Source: sessions, Wanted: opts.wants,
	}
	return session.Run(ctx, opts.name, opts.watch)
}

func (o *options) wants(lease *leasev1.Lease) bool {
	return (o.name == "" || o.name == lease.GetName()) && (o.state == "" || o.state == word(lease.GetState()))
}
