package up

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

// heartbeats are the agents of the simulated nodes, one for each, as there would be one on each real node.
type heartbeats []*agent.Agent

// newHeartbeats makes agents that beat at the leasesvc of this process.
func newHeartbeats(address string, nodes []string, logger *slog.Logger) (heartbeats, error) {
	boot := identity.NewReplicaID() // all simulated nodes boot together
	var beats heartbeats
	for _, node := range nodes {
		a, err := agent.New(agent.Config{
			Targets: []string{address},
			Dial: func(target string) (*grpc.ClientConn, error) {
				return rpcclient.Dial(target, rpcclient.Config{Insecure: true}, logger)
			},
			Holders: []agent.Holder{{Class: "node", Name: node, BootID: boot}},
		})
		if err != nil {
			return nil, err
		}
		beats = append(beats, a)
	}
	return beats, nil
}

// Run beats until ctx ends.
func (h heartbeats) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range h {
		group.Go(func() error { return a.Run(ctx) })
	}
	group.Go(func() error { // without nodes there is nothing to do, which is no reason to end
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}
