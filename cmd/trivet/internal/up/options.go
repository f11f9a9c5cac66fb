package up

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/kubeconn"
)

// Options are what `trivet up` can be told.
type Options struct {
	// Command is how the caller was called, for the commands that it suggests.
	Command string
	// Cluster is the name of the cluster in etcd's keys.
	Cluster string
	// Nodes, Services and Pods size the simulated fleet.
	Nodes, Services, Pods int
	// Churn is the mean time between two changes in the fleet; 0 keeps it still.
	Churn time.Duration
	// Fleet is "auto", "on" or "off"; auto simulates a fleet only in a cluster that `trivet up` started itself.
	Fleet string
	// Kubeconfig names a cluster that exists; empty: start one.
	Kubeconfig string
	// Etcd is used with Kubeconfig; Trivet keeps its own keys there.
	Etcd etcdconn.Config
	// AssetsDir holds the binaries of etcd and kube-apiserver; empty: .assets, or KUBEBUILDER_ASSETS.
	AssetsDir string
	// DataDir keeps data, logs and the kubeconfig after the end; empty: a temporary folder that is removed.
	DataDir string
	// FreePorts takes whatever ports are free in place of the documented ones, so that several may run side by side.
	FreePorts bool
	// ReadyTimeout bounds the wait for all legs to become ready.
	ReadyTimeout time.Duration
}

// DefaultOptions returns the defaults: a control plane of its own with 20 nodes, 10 services and 50 pods.
func DefaultOptions() Options {
	return Options{
		Command: "trivet", Cluster: "default", Nodes: 20, Services: 10, Pods: 50, Churn: 2 * time.Second, Fleet: "auto",
		Etcd: etcdconn.DefaultConfig(), ReadyTimeout: time.Minute,
	}
}

// RegisterFlags adds the flags of `trivet up`.
func (o *Options) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Cluster, "cluster", o.Cluster, "name of the cluster, which separates the keys of several in one etcd")
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "simulated nodes, each with a heartbeat over a real gRPC stream")
	fs.IntVar(&o.Services, "services", o.Services, "simulated Services")
	fs.IntVar(&o.Pods, "pods", o.Pods, "simulated Pods, written to the real kube-apiserver")
	fs.DurationVar(&o.Churn, "churn", o.Churn, "mean time between two changes in the simulated fleet; 0 keeps it still")
	fs.StringVar(&o.Fleet, "fleet", o.Fleet, "simulate a fleet: on, off, or auto (only in a cluster started here)")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "use this cluster instead of starting one, with the etcd of --etcd-endpoints for the keys of Trivet")
	fs.StringVar(&o.AssetsDir, "assets-dir", o.AssetsDir, "folder with the binaries of etcd and kube-apiserver (default .assets; KUBEBUILDER_ASSETS wins)")
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "keep data, logs and the kubeconfig in this folder (default: a temporary one)")
	fs.BoolVar(&o.FreePorts, "free-ports", o.FreePorts, "listen on free ports instead of 7600-7613 and 7680")
	fs.DurationVar(&o.ReadyTimeout, "ready-timeout", o.ReadyTimeout, "how long to wait for all legs to become ready")
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
	if o.ReadyTimeout <= 0 {
		problems = append(problems, fmt.Errorf("--ready-timeout: %v is not positive", o.ReadyTimeout))
	}
	return append(problems, o.validateCluster()...)
}

// validateCluster checks what leads to a cluster that exists.
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

// maxFleet bounds the simulated load to what one machine's apiserver bears.
const maxFleet = 5000

func appendSize(problems []error, flag string, value int) []error {
	if value < 0 || value > maxFleet {
		return append(problems, fmt.Errorf("%s: %d is not between 0 and %d", flag, value, maxFleet))
	}
	return problems
}

// simulates says whether a fleet is wanted.
func (o *Options) simulates() bool {
	return o.Fleet == "on" || (o.Fleet == "auto" && o.Kubeconfig == "")
}
