package slicesvc

import (
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/process"
)

// Program is slicesvc as a server process. cfg is filled by flags and read when the service is built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:     "slicesvc",
		Short:    "Keeps the EndpointSlices of every Service with a selector.",
		GRPCPort: 7603, AdminPort: 7613,
		Shards:        func() int { return cfg.Shards },
		Kube:          true,
		Loops:         []string{LoopName},
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build: func(deps process.Deps) (process.Service, error) {
			kube, err := kubernetes.NewForConfig(deps.KubeConfig)
			if err != nil {
				return nil, err
			}
			return New(*cfg, Deps{
				Member: deps.Member, Kube: kube, KubeConfig: deps.KubeConfig, Leadership: deps.Candidate,
				Logger: deps.Logger, Metrics: deps.Metrics, Ready: deps.Ready, LoopSelection: deps.LoopSelection,
			})
		},
	}
}
