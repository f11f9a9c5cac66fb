// Package certs is `trivet certs`: the certificates of an installation as Secrets and a ConfigMap,
// written to the cluster or printed.
//
// An object that another program made is never changed. A run that has nothing to do writes
// nothing. Package internal/certs decides; this package reads and writes.
package certs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// minOverlap is the time in which kubelets write a changed volume and servers read it.
const minOverlap = 2 * time.Minute

// options are the flags of all subcommands.
type options struct {
	namespace, clusterDomain         string
	servers, dnsNames, issue         []string
	caCert, caKey, etcdCert, etcdKey string
	clientCAFiles                    []string
	authorityLifetime, lifetime      time.Duration
	overlap                          time.Duration
	rotate                           bool
	kubeconfig, context              string
	includeClusterClientCA, dryRun   bool
}

// NewCommand returns `trivet certs`.
func NewCommand(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:   "certs",
		Short: "Issue and rotate the certificates of an installation",
		Long: `Issue the certificates that the servers of an installation need, and replace them before they expire.

The certificates are Secrets trivet-<server>-tls, the authorities that all peers trust are ConfigMap trivet-ca. The
key of the authority is Secret trivet-ca. An object that another program made is never changed.`,
		Args: cobra.ArbitraryArgs,
		RunE: exit.UnknownCommand,
	}
	command.AddCommand(newApplyCommand(streams), newRenderCommand(streams), newStatusCommand(streams), newTrustCommand(streams))
	return command
}

func newApplyCommand(streams printer.Streams) *cobra.Command {
	opts := defaults()
	command := &cobra.Command{
		Use:   "apply",
		Short: "Write what is missing or wears out to the cluster",
		Long: `Write the Secrets and the ConfigMap of an installation. A certificate is replaced when less than a third of its
life is left. A new authority is trusted for the overlap before it signs, and the former one for the overlap
afterwards, so run this again from time to time; the component deploy/components/certs does.

Exit codes:
  0   Everything is as it must be.
  1   An object could not be written, or another program made it. The others were written.
  2   The cluster gave no answer.
  64  The command line is wrong.`,
		Example: `  trivet certs apply
  trivet certs apply --include-cluster-client-ca --dry-run
  trivet certs apply --ca-cert ca.crt --ca-key ca.key
  trivet certs apply --rotate-ca`,
		RunE: changing(&opts, streams, (*run).apply),
	}
	opts.register(command.Flags())
	opts.registerCluster(command.Flags())
	command.Flags().BoolVar(&opts.dryRun, "dry-run", false, "Check everything at the server and change nothing.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

// changing returns the RunE of a command that changes the cluster and reports each change.
func changing(opts *options, streams printer.Streams, do func(*run, context.Context) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		settings, err := opts.settings(args)
		if err != nil {
			return err
		}
		objects, err := connect(opts, streams.Env)
		if err != nil {
			return err
		}
		return repeatedly(command.Context(), objects, settings, time.Now, func(change change) { fmt.Fprintln(streams.Out, change) }, do)
	}
}

func newRenderCommand(streams printer.Streams) *cobra.Command {
	opts := defaults()
	var file, directory string
	command := &cobra.Command{
		Use:   "render",
		Short: "Print the objects as YAML, private keys included",
		Long: `Print the Secrets and the ConfigMap of an installation as YAML, without a cluster. The output has private keys.

With -f, the objects of a file are the start: only what is missing or wears out is replaced, so the output of one run
is the input of the next.

With --directory, the files that static Pods read on a machine are written, too: trust/, etcd/ and a folder for each
server. A file that is up to date stays as it is. The key of the authority is only in the output.`,
		Example: `  umask 077
  trivet certs render > certs.yaml
  trivet certs render -f certs.yaml > renewed.yaml
  trivet certs render -f certs.yaml --directory /etc/trivet > renewed.yaml`,
		RunE: func(command *cobra.Command, args []string) error {
			settings, err := opts.settings(args)
			if err != nil {
				return err
			}
			return render(command.Context(), streams, file, directory, settings)
		},
	}
	opts.register(command.Flags())
	command.Flags().StringVarP(&file, "filename", "f", "", "File with the output of an earlier run.")
	command.Flags().StringVar(&directory, "directory", "", "Also write the files of static Pods below this directory, such as /etc/trivet.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

func newStatusCommand(streams printer.Streams) *cobra.Command {
	opts := defaults()
	var flags client.OutputFlags
	command := &cobra.Command{
		Use:   "status",
		Short: "Show the certificates of an installation and what the next run of apply does",
		Long: `Show each certificate and authority of an installation, when it expires, and what the next run of
trivet certs apply would do.

Exit codes:
  0   Every certificate exists and is valid.
  1   A certificate is missing, has expired, or should have been renewed.
  2   The cluster gave no answer.
  64  The command line is wrong.`,
		Example: `  trivet certs status
  trivet certs status -o json | jq -r '.certificates[] | select(.wrong) | .name'`,
		RunE: func(command *cobra.Command, args []string) error {
			settings, err := opts.settings(args)
			if err := exit.UsageError(append(flags.Validate(), err)...); err != nil {
				return err
			}
			objects, err := connect(&opts, streams.Env)
			if err != nil {
				return err
			}
			return showStatus(command.Context(), &flags, objects, settings, time.Now())
		},
	}
	flags.Register(command, streams, "table", "name")
	opts.register(command.Flags())
	opts.registerCluster(command.Flags())
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

func defaults() options {
	return options{
		namespace: "trivet-system", clusterDomain: "cluster.local", servers: certs.Servers(),
		authorityLifetime: certs.AuthorityLifetime, lifetime: certs.LeafLifetime, overlap: time.Hour,
	}
}

func (o *options) register(flags *pflag.FlagSet) {
	o.registerTrust(flags)
	flags.StringVar(&o.clusterDomain, "cluster-domain", o.clusterDomain, "Domain of the cluster's Services.")
	flags.StringSliceVar(&o.issue, "issue", nil,
		"Further certificates of Trivet's authority: etcd (the members of Trivet's own etcd, and Secrets trivet-<server>-etcd of their clients), metrics (user trivet:metrics, for Prometheus).")
	flags.StringSliceVar(&o.dnsNames, "dns-name", nil, "Further DNS name of a server, as server=name; repeat it for more.")
	flags.StringVar(&o.caCert, "ca-cert", "", "PEM file with your authority, followed by its issuers; empty: one is made.")
	flags.StringVar(&o.caKey, "ca-key", "", "PEM file with the key of --ca-cert. It is not stored in the cluster.")
	flags.StringVar(&o.etcdCert, "etcd-ca-cert", "", "PEM file with the authority of etcd's clients; with it, Secrets trivet-<server>-etcd are issued, too, of users trivet:<server>.")
	flags.StringVar(&o.etcdKey, "etcd-ca-key", "", "PEM file with the key of --etcd-ca-cert. It is not stored in the cluster.")
	flags.DurationVar(&o.authorityLifetime, "ca-lifetime", o.authorityLifetime, "Lifetime of a new authority.")
	flags.DurationVar(&o.lifetime, "lifetime", o.lifetime, "Lifetime of a new certificate.")
	flags.DurationVar(&o.overlap, "overlap", o.overlap, "How long a new authority is trusted before it signs, and a former one afterwards.")
	flags.BoolVar(&o.rotate, "rotate-ca", false, "Begin to replace the authority now, unless that is under way.")
}

func (o *options) registerTrust(flags *pflag.FlagSet) {
	flags.StringVarP(&o.namespace, "namespace", "n", o.namespace, "Namespace of the installation.")
	flags.StringSliceVar(&o.servers, "servers", o.servers, "Servers that have certificates.")
	flags.StringSliceVar(&o.clientCAFiles, "client-ca-file", nil, "PEM file with further authorities of clients, such as the cluster's; repeat it for more.")
}

func (o *options) registerCluster(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of a kubeconfig file; empty: $KUBECONFIG, ~/.kube/config, or the service account of the pod.")
	flags.StringVar(&o.context, "context", "", "Context of the kubeconfig; empty: the current one.")
	flags.BoolVar(&o.includeClusterClientCA, "include-cluster-client-ca", false,
		"Trust the authorities by which kube-apiserver knows its clients, so that certificates of kubeconfigs and of kubelets are accepted.")
}

// settings are options after all checks, with the content of the files.
type settings struct {
	namespace              string
	leaves                 []leaf // that Trivet's authority signs
	policy                 certs.Policy
	etcdClients            []leaf           // of etcd, one for each server
	etcd                   *certs.Authority // signs etcdClients; nil leaves their Secrets alone
	clientCAs              [][]byte
	includeClusterClientCA bool
}

// secrets returns the names of the Secrets with a certificate, each once.
func (s settings) secrets() []string {
	var names []string
	for _, leaf := range slices.Concat(s.leaves, s.etcdClients) {
		if !slices.Contains(names, leaf.secret) {
			names = append(names, leaf.secret)
		}
	}
	return names
}

// leaf is a certificate and the Secret that has it.
type leaf struct {
	secret string
	certs.Leaf
}

func (o *options) settings(args []string) (settings, error) {
	s := settings{namespace: o.namespace, includeClusterClientCA: o.includeClusterClientCA, policy: certs.Policy{
		AuthorityLifetime: o.authorityLifetime, LeafLifetime: o.lifetime, Overlap: o.overlap, Rotate: o.rotate,
	}}
	var problems []error
	add := func(err error) { problems = append(problems, err) }
	if len(args) > 0 {
		add(fmt.Errorf("the command takes no arguments, got %q", args))
	}
	if o.namespace == "" {
		add(errors.New("--namespace is empty"))
	}
	if o.lifetime <= 2*certs.Backdate || o.authorityLifetime <= o.lifetime {
		add(fmt.Errorf("--lifetime %v and --ca-lifetime %v: give more than %v, and the authority more than its certificates",
			o.lifetime, o.authorityLifetime, 2*certs.Backdate))
	}
	if o.overlap < minOverlap {
		add(fmt.Errorf("--overlap %v: processes need at least %v to read a changed volume", o.overlap, minOverlap))
	}
	var err error
	s.leaves, err = o.leaves()
	add(err)
	s.etcdClients = o.etcdClients()
	s.policy.Given, err = readAuthority("--ca-cert", o.caCert, "--ca-key", o.caKey)
	add(err)
	s.etcd, err = readAuthority("--etcd-ca-cert", o.etcdCert, "--etcd-ca-key", o.etcdKey)
	add(err)
	if s.etcd != nil && slices.Contains(o.issue, "etcd") {
		add(errors.New("--issue=etcd and --etcd-ca-cert both issue Secrets trivet-<server>-etcd: give one of them"))
	}
	for _, path := range o.clientCAFiles {
		text, err := os.ReadFile(path)
		if err == nil {
			_, err = certs.ParseCertificates(text)
		}
		if err != nil {
			add(fmt.Errorf("--client-ca-file %s: %w", path, err))
		}
		s.clientCAs = append(s.clientCAs, text)
	}
	return s, exit.UsageError(problems...)
}

func (o *options) leaves() ([]leaf, error) {
	further := map[string][]string{}
	var problems []error
	for _, entry := range o.dnsNames {
		server, name, ok := strings.Cut(entry, "=")
		if !ok || name == "" || !slices.Contains(o.servers, server) {
			problems = append(problems, fmt.Errorf("--dns-name %q: give SERVER=NAME with one of %s", entry, strings.Join(o.servers, ", ")))
		}
		further[server] = append(further[server], name)
	}
	var leaves []leaf
	for _, server := range o.servers {
		if !slices.Contains(certs.Servers(), server) {
			problems = append(problems, fmt.Errorf("--servers %q: the servers are %s", server, strings.Join(certs.Servers(), ", ")))
		}
		leaves = append(leaves, leaf{
			secret: "trivet-" + server + "-tls",
			Leaf:   certs.ServerLeaf(server, o.namespace, o.clusterDomain, further[server]...),
		})
	}
	for _, name := range o.issue {
		issued := o.furtherLeaves(name)
		if issued == nil {
			problems = append(problems, fmt.Errorf("--issue %q: give etcd or metrics", name))
		}
		leaves = append(leaves, issued...)
	}
	return leaves, errors.Join(problems...)
}

// furtherLeaves returns the certificates that --issue names, nil if it knows no such name.
func (o *options) furtherLeaves(name string) []leaf {
	switch name {
	case "etcd":
		return append(o.etcdClients(), leaf{secret: "trivet-etcd-server-tls", Leaf: certs.EtcdLeaf(o.namespace, o.clusterDomain)})
	case "metrics":
		return []leaf{{secret: "trivet-metrics-tls", Leaf: certs.ClientLeaf("trivet:metrics")}}
	default:
		return nil
	}
}

// etcdClients returns the certificates of the servers as clients of etcd.
func (o *options) etcdClients() []leaf {
	var leaves []leaf
	for _, server := range o.servers {
		leaves = append(leaves, leaf{secret: etcdSecret(server), Leaf: certs.EtcdClientLeaf(server, o.namespace)})
	}
	return leaves
}

func etcdSecret(server string) string { return "trivet-" + server + "-etcd" }

func readAuthority(certFlag, certPath, keyFlag, keyPath string) (*certs.Authority, error) {
	if certPath == "" && keyPath == "" {
		return nil, nil
	}
	if certPath == "" || keyPath == "" {
		return nil, fmt.Errorf("%s and %s are given together", certFlag, keyFlag)
	}
	cert, err := os.ReadFile(certPath)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFlag, err)
	}
	key, err := os.ReadFile(keyPath)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyFlag, err)
	}
	authority, err := certs.ParseAuthority(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s %s, %s %s: %w", certFlag, certPath, keyFlag, keyPath, err)
	}
	return authority, nil
}

func render(ctx context.Context, streams printer.Streams, file, directory string, s settings) error {
	objects := newMemory(s.namespace)
	if file != "" {
		text, err := os.ReadFile(file)
		if err == nil {
			err = objects.load(text)
		}
		if err != nil {
			return exit.UsageError(fmt.Errorf("-f %s: %w", file, err))
		}
	}
	if err := applyRepeatedly(ctx, objects, s, time.Now, func(change change) {
		fmt.Fprintln(streams.Err, change)
	}); err != nil {
		return err
	}
	if err := objects.print(streams.Out); err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "cannot print the objects", Err: err}
	}
	if directory == "" {
		return nil
	}
	// The output is complete by now: an authority whose key is lost could not be used again.
	err := writeFiles(directory, objects.files(), func(path string) { fmt.Fprintln(streams.Err, path, "written") })
	if err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "cannot write the files", Err: err}
	}
	return nil
}
