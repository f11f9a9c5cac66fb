package clusterpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// cleanTimeout bounds the cleaning of a control plane on a busy machine.
const cleanTimeout = time.Minute

// controlPlane is a devcluster.Cluster that can be made clean.
type controlPlane interface {
	devcluster.Servers
	// Access returns what the borrower needs.
	Access() (devcluster.Access, error)
	// clean brings back the state after the start, also of servers that the borrower has stopped.
	clean(context.Context) error
	Stop() error
}

// Pool starts a control plane for a borrower if it has no idle one. A borrower waits only for one
// that is cleaned, never for another borrower, so no test run stalls.
type Pool struct {
	start func(context.Context) (controlPlane, error)
	logf  func(format string, args ...any)

	mu       sync.Mutex // guards the fields below
	cleaned  sync.Cond  // a cleaning has ended
	idle     []controlPlane
	cleaning int     // control planes
	waiting  int     // borrowers, each for one of them
	died     []error // of servers that were not stopped
}

// New returns a pool that reports discarded control planes with logf.
func New(logf func(format string, args ...any)) *Pool { return newPool(logf, startControlPlane) }

func newPool(logf func(string, ...any), start func(context.Context) (controlPlane, error)) *Pool {
	p := &Pool{start: start, logf: logf}
	p.cleaned.L = &p.mu
	return p
}

// Serve lends control planes to the clients of a listener until ctx ends. It then ends the
// connections of the borrowers that remain, stops all control planes, and returns. The error also
// names each server that has died and was not stopped.
func (p *Pool) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { listener.Close() })
	var sessions sync.WaitGroup
	var failed error
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				failed = fmt.Errorf("accept a borrower: %w", err)
			}
			break
		}
		sessions.Go(func() { p.lend(ctx, conn) })
	}
	cancel()
	sessions.Wait()
	stopped := make([]error, len(p.idle))
	for i, idle := range p.idle {
		sessions.Go(func() { stopped[i] = errors.Join(idle.Err(), idle.Stop()) })
	}
	sessions.Wait()
	return errors.Join(failed, errors.Join(p.died...), errors.Join(stopped...))
}

// lend serves one borrower until its connection ends.
func (p *Pool) lend(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	s := &session{ctx: ctx, pool: p}
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, s); err != nil {
		p.logf("serve a borrower: %v", err)
		conn.Close()
		return
	}
	server.ServeConn(conn) // returns when all calls have ended
	if s.lent != nil {
		p.giveBack(ctx, s.lent)
	}
}

// borrow returns a control plane that no other borrower has.
func (p *Pool) borrow(ctx context.Context) (controlPlane, error) {
	if idle := p.takeIdle(); idle != nil {
		return idle, nil
	}
	return p.start(ctx)
}

// takeIdle returns nil if a control plane must be started.
func (p *Pool) takeIdle() controlPlane {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) == 0 && p.waiting < p.cleaning {
		p.waiting++
		p.cleaned.Wait()
		p.waiting--
	}
	if len(p.idle) == 0 {
		return nil
	}
	last := len(p.idle) - 1
	taken := p.idle[last]
	p.idle = p.idle[:last]
	return taken
}

func (p *Pool) giveBack(ctx context.Context, lent controlPlane) {
	p.mu.Lock()
	p.cleaning++
	p.mu.Unlock()
	err := p.clean(ctx, lent)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.cleaned.Broadcast()
	p.cleaning--
	if err == nil {
		p.idle = append(p.idle, lent)
	} else if died := lent.Err(); died != nil {
		p.died = append(p.died, died)
	}
}

// clean stops a control plane that it cannot clean.
func (p *Pool) clean(ctx context.Context, lent controlPlane) error {
	limited, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	err := lent.Err()
	if err == nil {
		err = errors.Join(lent.clean(limited), lent.Err())
	}
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		p.logf("a control plane is discarded: %v", err)
	}
	return errors.Join(err, lent.Stop())
}
