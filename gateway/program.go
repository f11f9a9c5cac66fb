package gateway

import (
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/term"
)

// Program is the gateway as a server process. cfg is filled by flags and read when the service is built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:     "gateway",
		Short:    "Answers for all Trivet services of a cluster: gRPC, HTTP/JSON and a page.",
		GRPCPort: 7600, AdminPort: 7610,
		Loops:         []string{connectionsLoop},
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build: func(deps process.Deps) (process.Service, error) {
			return New(*cfg, Deps{
				Member: deps.Member, Directory: term.NewDirectory(deps.Etcd, deps.Member.Cluster, deps.Logger),
				Peers: deps.Peers, Logger: deps.Logger, Metrics: deps.Metrics, Ready: deps.Ready, LoopSelection: deps.LoopSelection,
			})
		},
	}
}
