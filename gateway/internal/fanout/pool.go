package fanout

import (
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/term"
)

// Dial makes a connection to a member's gRPC server without contacting it.
type Dial func(member term.Member) (*grpc.ClientConn, error)

// Pool keeps one connection to each replica. It is safe for concurrent use; make it with NewPool.
type Pool struct {
	dial Dial

	mu    sync.Mutex // guards conns and closed; not held during a call
	conns map[key]*grpc.ClientConn
	// closed is set once and ends every later call before it dials.
	closed bool
}

// key names one process: its id is new at every start.
type key struct{ service, id, address string }

// NewPool returns a Pool without connections.
func NewPool(dial Dial) *Pool {
	return &Pool{dial: dial, conns: map[key]*grpc.ClientConn{}}
}

// Connection returns the connection to a member, made when it is first asked for. It stays the pool's.
func (p *Pool) Connection(member term.Member) (*grpc.ClientConn, error) {
	if member.GRPCAddress == "" {
		return nil, status.Error(codes.FailedPrecondition, "it is registered without a gRPC address")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, status.Error(codes.Unavailable, "this gateway is shutting down")
	}
	if conn, ok := p.conns[keyOf(member)]; ok {
		return conn, nil
	}
	conn, err := p.dial(member)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", member.GRPCAddress, err)
	}
	p.conns[keyOf(member)] = conn
	return conn, nil
}

// Keep closes the connections to all but these members. A call under way to one that left fails, as it would anyway.
func (p *Pool) Keep(members []term.Member) error {
	keep := make(map[key]bool, len(members))
	for _, member := range members {
		keep[keyOf(member)] = true
	}
	return p.drop(func(k key) bool { return !keep[k] })
}

// Close closes all connections; asking for one fails from then on. It may be called again.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.drop(func(key) bool { return true })
}

// Connections counts the replicas to which a connection is kept.
func (p *Pool) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func (p *Pool) drop(left func(key) bool) error {
	var dropped []*grpc.ClientConn
	p.mu.Lock()
	for k, conn := range p.conns {
		if left(k) {
			dropped = append(dropped, conn)
			delete(p.conns, k)
		}
	}
	p.mu.Unlock()

	var errs []error
	for _, conn := range dropped {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

func keyOf(member term.Member) key {
	return key{service: member.Service, id: member.ID, address: member.GRPCAddress}
}
