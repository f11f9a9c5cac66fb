package slicesvc

import (
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
			cluster, err := Connect(deps.KubeConfig)
			if err != nil {
				return nil, err
			}
			return New(*cfg, Deps{
				Member: deps.Member, Cluster: cluster, Leadership: deps.Candidate,
				Logger: deps.Logger, Metrics: deps.Metrics, Ready: deps.Ready, LoopSelection: deps.LoopSelection,
			})
		},
	}
}
