package leasesvc

import (
	"fmt"

	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

// kubeRate is far beyond what the writers can send: they bound themselves by how many there are, so that how soon a Lease is
// renewed is a matter of the kube-apiserver's answers and not of a clock here. At 10 s between two renewals of a node, 200 a
// second, which is enough for the others, would be spent by 2,000 nodes.
const kubeRate = 20_000

// Program is leasesvc as a server process. cfg is filled by flags and read when the service is built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:          ServiceName,
		Short:         "Keeps the heartbeats of nodes in memory and their Lease objects in Kubernetes.",
		GRPCPort:      7601,
		AdminPort:     7611,
		Shards:        func() int { return cfg.Shards },
		Kube:          true,
		KubeQPS:       kubeRate,
		KubeBurst:     kubeRate,
		Loops:         loopNames(),
		Unvalidated:   Unvalidated(),
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build:         func(deps process.Deps) (process.Service, error) { return build(*cfg, deps) },
	}
}

func build(cfg Config, deps process.Deps) (process.Service, error) {
	kube, err := kubernetes.NewForConfig(kubeconn.Prompt(deps.KubeConfig, coordinationv1.Resource("leases")))
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return New(cfg, Deps{
		Member:        deps.Member,
		Kube:          kube,
		Leadership:    deps.Candidate,
		Etcd:          deps.Etcd,
		Dial:          dialer(deps),
		Logger:        deps.Logger,
		Metrics:       deps.Metrics,
		Ready:         deps.Ready,
		LoopSelection: deps.LoopSelection,
	})
}

// dialer reaches other replicas with this process's own certificates.
func dialer(deps process.Deps) func(address string) (*grpc.ClientConn, error) {
	return func(address string) (*grpc.ClientConn, error) {
		peers := deps.Peers
		peers.ServerName = ServiceName // its address may be in no certificate: a pod's is not known beforehand
		return rpcclient.Dial(address, peers, deps.Logger)
	}
}

// loopNames are all loops, as --loops takes them.
func loopNames() []string {
	return []string{SessionsLoop, WritebackLoop, NodeHealthLoop, TaintEvictionLoop}
}
