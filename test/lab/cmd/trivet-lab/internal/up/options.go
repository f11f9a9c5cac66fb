package up

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/kubeconn"
)

// NewCommand returns `trivet-lab up`. lab and trivet are the paths of this executable and of
// trivet, for the suggested commands. Its errors carry their exit code.
func NewCommand(streams printer.Streams, lab, trivet string) *cobra.Command {
	opts := DefaultOptions()
	opts.Lab, opts.Trivet, opts.Env = lab, trivet, streams.Env
	command := &cobra.Command{
		Use:   "up",
		Short: "Run a control plane, all services and a simulated fleet on this machine",
		Long: `Starts etcd, kube-apiserver, leasesvc, bootstrapsvc, slicesvc, the gateway and a small simulated fleet, prints
their addresses, and stops everything on Ctrl-C. With --kubeconfig and --etcd-endpoints it serves an existing
cluster and simulates nothing, unless --fleet=on.

With --demo each service has two replicas, and there are two kube-apiservers, each a process of its own. trivet-lab break
breaks a Node, a zone, a replica, a kube-apiserver, an address or the Pods of a Service, and trivet-lab restore undoes it.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if problems := opts.Validate(); len(problems) > 0 {
				return exit.UsageError(problems...)
			}
			err := Run(command.Context(), opts, streams.Out)
			if _, coded := errors.AsType[*exit.Error](err); err == nil || coded {
				return err
			}
			return &exit.Error{Code: exit.Findings, Summary: "trivet-lab up ended", Err: err}
		},
		Example: `  trivet-lab up
  trivet-lab up --nodes 100 --services 40 --pods 400`,
	}
	opts.RegisterFlags(command.Flags())
	command.AddCommand(newReplicaCommand())
	return command
}

// Options are the options of `trivet-lab up`.
type Options struct {
	// Lab and Trivet are the paths of this executable and of trivet, for the suggested commands.
	Lab, Trivet string
	// Cluster is the name of the cluster in the keys of etcd.
	Cluster string
	// Nodes, Services and Pods are the size of the simulated fleet.
	Nodes, Services, Pods int
	// Churn is the mean time between two changes in the fleet; 0 means none.
	Churn time.Duration
	// Fleet is "auto", "on" or "off". auto simulates a fleet only in a cluster that `trivet-lab up`
	// started.
	Fleet string
	// Demo runs two replicas of each service and a second kube-apiserver, each in a process of its
	// own, so that `trivet-lab break` is able to break them.
	Demo bool
	// Kubeconfig is the kubeconfig of an existing cluster; empty starts one.
	Kubeconfig string
	// Etcd is the etcd for the keys of Trivet; used with Kubeconfig only.
	Etcd etcdconn.Config
	// AssetsDir has the binaries of etcd and kube-apiserver; empty means KUBEBUILDER_ASSETS, else
	// .assets.
	AssetsDir string
	// DataDir keeps data, logs and the kubeconfig; empty means a temporary folder, which is
	// removed.
	DataDir string
	// FreePorts listens on free ports instead of the documented ones, so that several instances can
	// run.
	FreePorts bool
	// Env reads the environment, which says where commands look for this instance; nil publishes
	// nothing.
	Env func(string) string
	// ReadyTimeout limits the wait until all services are ready.
	ReadyTimeout time.Duration
}

// DefaultOptions returns the defaults: a control plane of its own with 20 nodes, 10 services and 50
// pods.
func DefaultOptions() Options {
	return Options{
		Lab: "trivet-lab", Trivet: "trivet", Cluster: "default", Nodes: 20, Services: 10, Pods: 50, Churn: 2 * time.Second, Fleet: "auto",
		Etcd: etcdconn.DefaultConfig(), ReadyTimeout: time.Minute,
	}
}

// RegisterFlags adds the flags of `trivet-lab up`.
func (o *Options) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Cluster, "cluster", o.Cluster, "name of the cluster, which separates the keys of several clusters in one etcd")
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "simulated nodes, each with a heartbeat over a real gRPC stream")
	fs.IntVar(&o.Services, "services", o.Services, "simulated Services")
	fs.IntVar(&o.Pods, "pods", o.Pods, "simulated Pods, written to the real kube-apiserver")
	fs.DurationVar(&o.Churn, "churn", o.Churn, "mean time between two changes in the simulated fleet; 0 means none")
	fs.StringVar(&o.Fleet, "fleet", o.Fleet, "simulate a fleet: on, off, or auto (only in a cluster started here)")
	fs.BoolVar(&o.Demo, "demo", o.Demo, "run two replicas of each service and two kube-apiservers, with findings that wait for a person; trivet-lab break breaks a part")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "use this cluster instead of starting one, and the etcd of --etcd-endpoints for the keys of Trivet")
	fs.StringVar(&o.AssetsDir, "assets-dir", o.AssetsDir, "folder with the binaries of etcd and kube-apiserver (default: KUBEBUILDER_ASSETS, else .assets)")
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "keep data, logs and the kubeconfig in this folder (default: a temporary one)")
	fs.BoolVar(&o.FreePorts, "free-ports", o.FreePorts, "listen on free ports instead of 7600-7613, 7680 and 7681; commands then find this instance only by the printed settings")
	fs.DurationVar(&o.ReadyTimeout, "ready-timeout", o.ReadyTimeout, "how long to wait until all services are ready")
	o.Etcd.RegisterFlags(fs)
}

// Validate returns every problem of the options, each naming its flag.
func (o *Options) Validate() []error {
	var problems []error
	problems = appendSize(problems, "--nodes", o.Nodes)
	problems = appendSize(problems, "--services", o.Services)
	problems = appendSize(problems, "--pods", o.Pods)
	if o.Pods > 0 && (o.Nodes == 0 || o.Services == 0) {
		problems = append(problems, errors.New("--pods: pods need a node and a Service; raise --nodes and --services or set --pods=0"))
	}
	if o.Churn < 0 {
		problems = append(problems, fmt.Errorf("--churn: %v is negative", o.Churn))
	}
	if o.Fleet != "auto" && o.Fleet != "on" && o.Fleet != "off" {
		problems = append(problems, fmt.Errorf("--fleet: %q is none of auto, on, off", o.Fleet))
	}
	if o.Demo && (o.Kubeconfig != "" || !o.simulates()) {
		problems = append(problems, errors.New("--demo: breaks only a cluster and a fleet of its own, so neither --kubeconfig nor --fleet=off goes with it"))
	}
	if o.ReadyTimeout <= 0 {
		problems = append(problems, fmt.Errorf("--ready-timeout: %v is not positive", o.ReadyTimeout))
	}
	return append(problems, o.validateCluster()...)
}

// validateCluster checks the flags for an existing cluster.
func (o *Options) validateCluster() []error {
	if o.Kubeconfig == "" {
		if reflect.DeepEqual(o.Etcd, etcdconn.DefaultConfig()) {
			return nil
		}
		return []error{errors.New("--kubeconfig: needed with the --etcd-* flags, because both belong to one cluster")}
	}
	kube := kubeconn.Config{Kubeconfig: o.Kubeconfig}
	return append(kube.Validate(), o.Etcd.Validate()...)
}

// maxFleet limits the simulated load to the capacity of one kube-apiserver.
const maxFleet = 5000

func appendSize(problems []error, flag string, value int) []error {
	if value < 0 || value > maxFleet {
		return append(problems, fmt.Errorf("%s: %d is not between 0 and %d", flag, value, maxFleet))
	}
	return problems
}

// simulates reports whether to simulate a fleet.
func (o *Options) simulates() bool {
	return o.Fleet == "on" || (o.Fleet == "auto" && o.Kubeconfig == "")
}
