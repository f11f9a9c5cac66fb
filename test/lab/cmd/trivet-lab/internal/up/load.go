package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/test/lab/simulate"
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

// heartbeats are the agents of the simulated nodes, one for each node. It is safe for concurrent
// use.
type heartbeats struct {
	agents map[string]*agent.Agent // by node
	boot   string                  // the same for all simulated nodes

	mu     sync.Mutex      // guards silent, and changes of it
	silent map[string]bool // nodes without heartbeats
}

// newHeartbeats returns agents that send heartbeats of the fleet to the replicas of leasesvc, each
// with the certificate of its node. They renew Leases while heartbeats are not acknowledged.
func newHeartbeats(targets []string, creds *credentials, fleet *simulate.Fleet, logger *slog.Logger) (*heartbeats, error) {
	h := &heartbeats{agents: map[string]*agent.Agent{}, boot: identity.NewReplicaID(), silent: map[string]bool{}}
	for _, node := range fleet.Nodes() {
		files, err := creds.node(node)
		if err != nil {
			return nil, err
		}
		h.agents[node], err = agent.New(agent.Config{
			Targets: targets,
			Dial: func(target string) (*grpc.ClientConn, error) {
				return rpcclient.Dial(target, rpcclient.Config{TLS: files}, logger)
			},
			Holders: []agent.Holder{h.holder(node)}, Unacknowledged: fleet.RenewLease,
		})
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *heartbeats) holder(node string) agent.Holder {
	return agent.Holder{Class: "node", Name: node, BootID: h.boot}
}

// SetSilent stops the heartbeats of the nodes in silent and starts those of all others.
func (h *heartbeats) SetSilent(silent map[string]bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for node, a := range h.agents {
		switch {
		case silent[node] == h.silent[node]:
		case silent[node]:
			a.Remove(h.holder(node))
		default:
			errs = append(errs, a.Add(h.holder(node)))
		}
	}
	h.silent = silent
	return errors.Join(errs...)
}

// IsSilent reports whether a node sends no heartbeats.
func (h *heartbeats) IsSilent(node string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silent[node]
}

// Run sends heartbeats until ctx is done, even without nodes.
func (h *heartbeats) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range h.agents {
		group.Go(func() error { return a.Run(ctx) })
	}
	group.Go(func() error {
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}
