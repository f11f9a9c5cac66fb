package up

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

// tasks are goroutines that are stopped together. A nil *tasks is empty: it never fails, and stop
// does nothing.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	errs   chan error // buffers the first unexpected end
}

func newTasks() *tasks {
	ctx, cancel := context.WithCancel(context.Background())
	return &tasks{ctx: ctx, cancel: cancel, errs: make(chan error, 1)}
}

func (t *tasks) start(name string, run func(context.Context) error) {
	t.group.Go(func() {
		err := run(t.ctx)
		if t.ctx.Err() != nil {
			return
		}
		select {
		case t.errs <- fmt.Errorf("%s ended: %w", name, err):
		default:
		}
	})
}

// failed returns a channel with the error of the first task that ended before stop.
func (t *tasks) failed() <-chan error {
	if t == nil {
		return nil
	}
	return t.errs
}

// stop cancels all tasks and waits for their end.
func (t *tasks) stop() {
	if t == nil {
		return
	}
	t.cancel()
	t.group.Wait()
}

// heartbeats are the agents of the simulated nodes, one for each node.
type heartbeats []*agent.Agent

// newHeartbeats returns agents that send heartbeats to the leasesvc of this process, each with the
// certificate of its node.
func newHeartbeats(address string, creds *credentials, nodes []string, logger *slog.Logger) (heartbeats, error) {
	boot := identity.NewReplicaID() // the same boot for all simulated nodes
	var agents heartbeats
	for _, node := range nodes {
		files, err := creds.node(node)
		if err != nil {
			return nil, err
		}
		a, err := agent.New(agent.Config{
			Targets: []string{address},
			Dial: func(target string) (*grpc.ClientConn, error) {
				return rpcclient.Dial(target, rpcclient.Config{TLS: files}, logger)
			},
			Holders: []agent.Holder{{Class: "node", Name: node, BootID: boot}},
		})
		if err != nil {
			return nil, err
		}
		agents = append(agents, a)
	}
	return agents, nil
}

// Run sends heartbeats until ctx is done, even without nodes.
func (h heartbeats) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range h {
		group.Go(func() error { return a.Run(ctx) })
	}
	group.Go(func() error {
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}
