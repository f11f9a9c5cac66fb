package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// concurrentReleases is the number of ReleaseLease calls at the same time.
	concurrentReleases = 16
	// releaseAttempts is how many calls fit into Config.ReleaseTimeout if no server answers. A
	// replica that does not answer is replaced by the next target.
	releaseAttempts = 4
)

// releaser ends the leases of the holders of a stopped Agent.
type releaser struct {
	cfg *Config

	mu          sync.Mutex                  // guards connections
	connections map[string]*grpc.ClientConn // by address
}

// releaseAll ends the leases of all registered holders, within Config.ReleaseTimeout. A holder
// whose lease was not ended expires like any other.
func (a *Agent) releaseAll() {
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.ReleaseTimeout)
	defer cancel()
	r := &releaser{cfg: &a.cfg, connections: map[string]*grpc.ClientConn{}}
	defer r.close()
	var calls errgroup.Group
	calls.SetLimit(concurrentReleases)
	var mu sync.Mutex // guards failed and first
	failed, first := 0, error(nil)
	held := a.router.heldLeases()
	for _, h := range held {
		calls.Go(func() error {
			if err := r.release(ctx, h.holder, h.address); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if failed++; first == nil {
					first = err
				}
			}
			return nil
		})
	}
	_ = calls.Wait()
	if failed > 0 {
		a.cfg.Logger.Warn("cannot release leases; they expire", "failed", failed, "released", len(held)-failed, "error", first)
	}
}

// release ends the lease of a holder, first at the replica at address. A lease that another boot
// has is not the holder's any more.
func (r *releaser) release(ctx context.Context, h Holder, address string) error {
	request := &leasev1.ReleaseLeaseRequest{
		Holder:     &leasev1.Holder{Class: h.Class, Name: h.Name, BootId: h.BootID},
		KeepObject: r.cfg.KeepLeaseObjects,
	}
	var last error
	for attempt := 0; ; attempt++ {
		err := r.call(ctx, address, request)
		reason, redirect := rpcerror.ReasonOf(err), rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey)
		switch {
		case err == nil, reason == reasonSuperseded:
			return nil
		case redirect != "" && attempt < maxMoves:
			address = redirect
			continue
		case reason != reasonNotLeader && status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded:
			return err
		}
		last, address = err, cmp.Or(redirect, r.targetAfter(address))
		if !backoff.Sleep(ctx, backoff.Jitter(backoff.Exponential{Min: r.cfg.MinBackoff, Max: r.cfg.MaxBackoff}.After(attempt+1))) {
			return errors.Join(ctx.Err(), last)
		}
	}
}

func (r *releaser) call(ctx context.Context, address string, request *leasev1.ReleaseLeaseRequest) error {
	connection, err := r.connection(address)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error()) // another target may be reachable
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.ReleaseTimeout/releaseAttempts)
	defer cancel()
	_, err = leasev1.NewHeartbeatServiceClient(connection).ReleaseLease(ctx, request, r.cfg.callOptions()...)
	return err
}

func (r *releaser) connection(address string) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if connection := r.connections[address]; connection != nil {
		return connection, nil
	}
	connection, err := r.cfg.Dial(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	r.connections[address] = connection
	return connection, nil
}

// targetAfter returns the target after an address that failed; the first one if it is no target.
func (r *releaser) targetAfter(address string) string {
	targets := r.cfg.targets()
	if len(targets) == 0 {
		return address
	}
	return targets[(slices.Index(targets, address)+1)%len(targets)]
}

func (r *releaser) close() {
	for address, connection := range r.connections {
		if err := connection.Close(); err != nil {
			r.cfg.Logger.Warn("cannot close connection", "target", address, "error", err)
		}
	}
}

// heldLease is a holder with the address of the replica that keeps its lease.
type heldLease struct {
	holder  Holder
	address string
}

// heldLeases returns the holders that have a lease, as far as the agent knows.
func (r *router) heldLeases() []heldLease {
	r.mu.Lock()
	defer r.mu.Unlock()
	var held []heldLease
	for _, e := range r.entries {
		if e.registeredAt != "" && !e.superseded {
			held = append(held, heldLease{holder: e.holder, address: e.registeredAt})
		}
	}
	return held
}
