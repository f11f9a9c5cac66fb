package leasesvc

import (
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/process"
)

// Program is leasesvc as a server process. cfg is filled by flags and read when the service is built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:          ServiceName,
		Short:         "Keeps the heartbeats of nodes in memory and their Lease objects in Kubernetes.",
		GRPCPort:      7601,
		AdminPort:     7611,
		Shards:        func() int { return cfg.Shards },
		Kube:          true,
		Loops:         []string{SessionsLoop, WritebackLoop},
		Unvalidated:   Unvalidated(),
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build:         func(deps process.Deps) (process.Service, error) { return build(*cfg, deps) },
	}
}

func build(cfg Config, deps process.Deps) (process.Service, error) {
	kube, err := kubernetes.NewForConfig(deps.KubeConfig)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return New(cfg, Deps{
		Member:        deps.Member,
		Kube:          kube,
		Leadership:    deps.Candidate,
		Logger:        deps.Logger,
		Metrics:       deps.Metrics,
		Ready:         deps.Ready,
		LoopSelection: deps.LoopSelection,
	})
}
