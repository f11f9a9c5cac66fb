package bootstrapsvc

import (
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/process"
)

// Program is bootstrapsvc as a server process. cfg is filled by flags and read when the service is
// built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:          "bootstrapsvc",
		Short:         "Keeps system namespaces, the kubernetes Service and its endpoints.",
		GRPCPort:      7602,
		AdminPort:     7612,
		Shards:        func() int { return 1 },
		Kube:          true,
		Loops:         loopNames(),
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
		KubeConfig:    deps.KubeConfig,
		Etcd:          deps.Etcd,
		Leadership:    deps.Candidate,
		Sessions:      deps.Candidate,
		Logger:        deps.Logger,
		Metrics:       deps.Metrics,
		LoopSelection: deps.LoopSelection,
	})
}
