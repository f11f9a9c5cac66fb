// Package check is `trivet check`: whether a cluster is fit for an install, and whether an
// installation works.
//
// Package clusterstate reads the facts and package diagnosis decides; this package runs all checks
// at once and prints their results. A check without an answer within --timeout could not be
// determined, and delays no other one. Nothing is written, except one key in etcd with a lease of
// ten seconds if --etcd-endpoints is given.
package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/clusterstate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/etcdconn"
)

// roundPause is the pause between two rounds of --wait.
const roundPause = time.Second

// command is one run of `trivet check`: its flags, and what they lead to.
type command struct {
	client.Flags

	pre     bool
	strict  bool
	wait    time.Duration
	etcd    etcdconn.Config
	cluster string
	machine machine

	streams printer.Streams
}

// machine says how the node on which the command runs is checked.
type machine struct {
	node              string
	healthz           string
	kubeletKubeconfig string
	socket            string
}

// NewCommand returns `trivet check`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	c := command{streams: streams}
	cobraCommand := &cobra.Command{
		Use:   "check",
		Short: "Check a cluster before an install, or an installation",
		Long: `Check whether the cluster of the kubeconfig is fit for an install (--pre), or whether an installation works.
Each line has a mark, the ID of the check and what was found; below it, what to do and the page of the check.

  √  Nothing needs attention.
  ‼  It needs attention, or it could not be determined.
  ×  The condition does not hold.
  ·  The check does not apply here.

Nothing is changed. With --etcd-endpoints, one key is written below /trivet/CLUSTER/check/ and removed.
On a node, --pre also checks its ports, kubelet and container runtime.

Exit codes:
  0   No check failed, and each was determined. With --strict, there is no warning either.
  1   A check failed; or there is a warning, with --strict.
  2   No check failed, and one could not be determined.
  64  The command line is wrong.`,
		Example: `  trivet check --pre
  trivet check --pre --etcd-endpoints https://10.0.0.1:2379 --etcd-ca-file ca.crt --etcd-cert-file tls.crt --etcd-key-file tls.key
  trivet check --wait 5m
  trivet check -o json | jq -r '.checks[] | select(.state == "failed") | .id'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("check takes no arguments, got %q", args))
			}
			return nil
		},
		RunE: func(cobraCommand *cobra.Command, _ []string) error {
			if err := c.validate(); err != nil {
				return err
			}
			return c.run(cobraCommand.Context())
		},
	}
	c.Register(cobraCommand, streams, "text", "short")
	fs := cobraCommand.Flags()
	fs.Lookup("timeout").Usage = "Timeout of each check."
	fs.BoolVar(&c.pre, "pre", false, "Check the cluster before an install.")
	fs.BoolVar(&c.strict, "strict", false, "Exit with 1 for warnings, too.")
	fs.DurationVar(&c.wait, "wait", 0, "Repeat until no check needs attention, for this time at most.")
	fs.StringSliceVar(&c.etcd.Endpoints, "etcd-endpoints", nil, "URLs of etcd's members, comma-separated; without them etcd is not checked.")
	fs.StringVar(&c.etcd.CAFile, "etcd-ca-file", "", "PEM file with the authorities of etcd's certificates.")
	fs.StringVar(&c.etcd.CertFile, "etcd-cert-file", "", "PEM file with the client certificate for etcd.")
	fs.StringVar(&c.etcd.KeyFile, "etcd-key-file", "", "PEM file with the key of --etcd-cert-file.")
	fs.StringVar(&c.cluster, "cluster", "default", "The servers' --cluster, for the prefix of keys in etcd.")
	fs.StringVar(&c.machine.node, "node", "auto", "Whether this machine is a node to check with --pre: auto, yes or no. auto means: if --kubelet-kubeconfig exists.")
	fs.StringVar(&c.machine.healthz, "kubelet-healthz", "http://127.0.0.1:10248/healthz", "The kubelet's healthz, as given to trivet-agent.")
	fs.StringVar(&c.machine.kubeletKubeconfig, "kubelet-kubeconfig", "/etc/kubernetes/kubelet.conf", "The kubelet's kubeconfig, as given to trivet-agent.")
	fs.StringVar(&c.machine.socket, "cri-socket", "/run/containerd/containerd.sock", "Socket of the container runtime.")
	client.CompleteFlag(cobraCommand, "node", nodeModes()...)
	cobraCommand.ValidArgsFunction = cobra.NoFileCompletions
	return cobraCommand
}

func nodeModes() []string { return []string{"auto", "yes", "no"} }

func (c *command) validate() error {
	problems := append(c.Validate(), client.OneOf("--node", c.machine.node, nodeModes()...))
	if c.wait < 0 {
		problems = append(problems, fmt.Errorf("--wait=%s: must be positive", c.wait))
	}
	if c.hasEtcd() {
		problems = append(problems, c.etcd.Validate()...)
	} else if c.etcd.CAFile != "" || c.etcd.CertFile != "" || c.etcd.KeyFile != "" {
		problems = append(problems, errors.New("--etcd-ca-file, --etcd-cert-file and --etcd-key-file need --etcd-endpoints"))
	}
	if c.cluster == "" || strings.Contains(c.cluster, "/") {
		problems = append(problems, fmt.Errorf("--cluster=%q: must be the name of a cluster", c.cluster))
	}
	return exit.UsageError(problems...)
}

func (c *command) hasEtcd() bool { return len(c.etcd.Endpoints) > 0 }

func (c *command) onNode() bool {
	if c.machine.node != "auto" {
		return c.machine.node == "yes"
	}
	_, err := os.Stat(c.machine.kubeletKubeconfig)
	return err == nil || errors.Is(err, os.ErrPermission)
}

func (c *command) run(ctx context.Context) error {
	sources, err := c.open()
	if err != nil {
		return err
	}
	defer sources.close()
	results, err := c.repeat(ctx, sources)
	if err != nil {
		return err
	}
	if err := c.print(results); err != nil {
		return client.CannotPrint("results", err)
	}
	return c.verdict(results)
}

// repeat runs rounds until nothing needs attention or --wait is over.
func (c *command) repeat(ctx context.Context, from *sources) ([]finished, error) {
	deadline := time.Now().Add(c.wait)
	progress := c.Slow("checking")
	if c.wait > 0 {
		progress.Stop()
		progress = c.Progress()
	}
	defer progress.Stop()
	left := func(ids []string) {
		if len(ids) > 0 {
			progress.Update("checking " + strings.Join(ids, ", "))
		}
	}
	for {
		results := runRound(ctx, diagnosis.Checks(c.pre), c.tasks(from), c.Timeout, left)
		if ctx.Err() != nil {
			return nil, client.Interrupted()
		}
		if c.accepts(results) || time.Now().After(deadline) {
			return results, nil
		}
		progress.Set(waitingFor(results))
		if !backoff.Sleep(ctx, roundPause) {
			return nil, client.Interrupted()
		}
	}
}

func (c *command) accepts(results []finished) bool {
	worst := summarize(results).Worst()
	return worst == diagnosis.OK || worst == diagnosis.Warning && !c.strict
}

func (c *command) verdict(results []finished) error {
	outcome := summarize(results)
	failed, unknown := outcome.Counts[diagnosis.Failed], outcome.Counts[diagnosis.Unknown]
	switch {
	case failed > 0:
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(failed, "check") + " failed"}
	case c.strict && outcome.Counts[diagnosis.Warning] > 0:
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(outcome.Counts[diagnosis.Warning], "warning") + ", with --strict"}
	case unknown > 0:
		return &exit.Error{Code: exit.Undetermined, Summary: printer.Count(unknown, "check") + " could not be determined"}
	default:
		return nil
	}
}

// open returns the sources of facts. It calls no server.
func (c *command) open() (*sources, error) {
	s := &sources{}
	if !c.pre {
		conn, err := c.Connect()
		if err != nil {
			return nil, err
		}
		s.gateway = conn
		// A kubeconfig of the environment may be that of another cluster than --server.
		if c.Gateway.Server != "" && c.Gateway.Kubeconfig == "" && c.Gateway.Context == "" {
			s.kubeErr = errors.New("no kubeconfig was chosen beside the address of the gateway: give --kubeconfig or --context of the same cluster")
			return s, nil
		}
	}
	access, err := kubeaccess.Load(kubeaccess.Config{Kubeconfig: c.Gateway.Kubeconfig, Context: c.Gateway.Context, Env: c.streams.Env})
	if err == nil {
		s.kube, err = clusterstate.NewKube(access.REST)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}
