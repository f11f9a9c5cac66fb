package slicesvc

import (
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/process"
)

// Program makes slicesvc a server process of its own; cfg gets its flags.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:     "slicesvc",
		Short:    "keeps the EndpointSlices of every Service with a selector",
		GRPCPort: 7603, AdminPort: 7613,
		Shards:        1,
		Kube:          true,
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build: func(deps process.Deps) (process.Service, error) {
			kube, err := kubernetes.NewForConfig(deps.KubeConfig)
			if err != nil {
				return nil, err
			}
			return New(*cfg, Deps{
				Member: deps.Member, Kube: kube, Leadership: deps.Candidate,
				Logger: deps.Logger, Metrics: deps.Metrics, Ready: deps.Ready, LoopSelection: deps.LoopSelection,
			})
		},
	}
}
