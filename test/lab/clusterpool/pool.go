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

// Pool has a limited number of control planes, each started when it is needed first.
type Pool struct {
	start func(context.Context) (controlPlane, error)
	logf  func(format string, args ...any)
	slots chan struct{} // one element for each control plane that is lent, started or cleaned

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	sessions sync.WaitGroup

	mu   sync.Mutex // guards idle
	idle []controlPlane
}

// New returns a pool of at most size control planes. logf reports discarded ones.
func New(size int, logf func(format string, args ...any)) *Pool {
	return newPool(size, logf, startControlPlane)
}

func newPool(size int, logf func(string, ...any), start func(context.Context) (controlPlane, error)) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool{start: start, logf: logf, slots: make(chan struct{}, size), ctx: ctx, cancel: cancel}
}

// Serve lends control planes to the clients of a listener. It returns after Close has begun.
func (p *Pool) Serve(listener net.Listener) error {
	defer context.AfterFunc(p.ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if p.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a borrower: %w", err)
		}
		p.sessions.Go(func() { p.lend(conn) })
	}
}

// lend serves one borrower until its connection ends.
func (p *Pool) lend(conn net.Conn) {
	defer context.AfterFunc(p.ctx, func() { conn.Close() })()
	s := &session{pool: p}
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, s); err != nil {
		p.logf("serve a borrower: %v", err)
		conn.Close()
		return
	}
	server.ServeConn(conn) // returns when all calls have ended
	if s.lent != nil {
		p.giveBack(s.lent)
	}
}

// borrow waits for a control plane that no other borrower has.
func (p *Pool) borrow() (controlPlane, error) {
	select {
	case p.slots <- struct{}{}:
	case <-p.ctx.Done():
		return nil, errClosed
	}
	if idle := p.takeIdle(); idle != nil {
		return idle, nil
	}
	started, err := p.start(p.ctx)
	if err != nil {
		<-p.slots
		return nil, err
	}
	return started, nil
}

func (p *Pool) takeIdle() controlPlane {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == 0 {
		return nil
	}
	last := len(p.idle) - 1
	taken := p.idle[last]
	p.idle = p.idle[:last]
	return taken
}

func (p *Pool) giveBack(lent controlPlane) {
	defer func() { <-p.slots }()
	ctx, cancel := context.WithTimeout(p.ctx, cleanTimeout)
	defer cancel()
	err := lent.Err()
	if err == nil {
		err = lent.clean(ctx)
	}
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, lent)
		return
	}
	if p.ctx.Err() == nil {
		p.logf("a control plane is discarded: %v", err)
	}
	if err := lent.Stop(); err != nil {
		p.logf("stop a control plane: %v", err)
	}
}

// Close stops all control planes. It ends the connections of the borrowers that remain.
func (p *Pool) Close() error {
	p.cancel()
	p.sessions.Wait()
	var problems []error
	for idle := p.takeIdle(); idle != nil; idle = p.takeIdle() {
		problems = append(problems, idle.Stop())
	}
	return errors.Join(problems...)
}

var errClosed = errors.New("the run of the tests has ended")
