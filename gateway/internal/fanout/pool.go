package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/term"
)

// Dial returns a connection to a member's gRPC server. It does not wait for it.
type Dial func(member term.Member) (*grpc.ClientConn, error)

// Pool keeps one connection to each replica. Make it with NewPool; it is safe for concurrent use.
type Pool struct {
	dial Dial

	mu     sync.Mutex // guards the fields below; not held during a call
	conns  map[key]*grpc.ClientConn
	closed bool
	// kept are the members of the last call of Keep. departed are earlier members, which a call
	// that began before may still ask for.
	kept, departed map[key]bool
}

// maxDeparted bounds the memory of departed members. A full memory is emptied: a late call then
// dials once more.
const maxDeparted = 4096

// key identifies a process: its id is new at each start.
type key struct{ service, id, address string }

// NewPool returns a Pool without connections.
func NewPool(dial Dial) *Pool {
	return &Pool{dial: dial, conns: map[key]*grpc.ClientConn{}}
}

// Connection returns the connection to a member, and dials if there is none. The caller must not
// close it.
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
	if p.departed[keyOf(member)] { // nothing would close the connection, and gRPC dials for ever
		return nil, status.Error(codes.Unavailable, "it is no longer registered")
	}
	conn, err := p.dial(member)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", member.GRPCAddress, err)
	}
	p.conns[keyOf(member)] = conn
	return conn, nil
}

// Call is one question to one replica over its connection.
type Call[Answer any] func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (Answer, error)

// CallMember asks a member over its connection.
func CallMember[Answer any](ctx context.Context, pool *Pool, member term.Member, call Call[Answer]) (Answer, error) {
	conn, err := pool.Connection(member)
	if err != nil {
		var none Answer
		return none, err
	}
	answer, err := call(ctx, conn, member)
	if status.Code(err) == codes.Canceled && ctx.Err() == nil && pool.dropped(member, conn) {
		// gRPC says that the connection is closing. The code stays: the call may have arrived.
		err = status.Error(codes.Canceled, "it left during the call, and is no longer registered")
	}
	return answer, err
}

// dropped reports whether a connection to a member was closed because the member left.
func (p *Pool) dropped(member term.Member, conn *grpc.ClientConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && p.conns[keyOf(member)] != conn
}

// Keep closes the connections to all other members. Their calls in progress fail. Members of an
// earlier call are not dialed again.
func (p *Pool) Keep(members []term.Member) error {
	keep := make(map[key]bool, len(members))
	for _, member := range members {
		keep[keyOf(member)] = true
	}
	p.mu.Lock()
	if p.departed == nil || len(p.departed) >= maxDeparted {
		p.departed = map[key]bool{}
	}
	for k := range p.kept {
		p.departed[k] = true
	}
	for k := range keep {
		delete(p.departed, k)
	}
	p.kept = keep
	p.mu.Unlock()
	return p.drop(func(k key) bool { return !keep[k] })
}

// Close closes all connections. Connection fails from then on. Close may be called again.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.drop(func(key) bool { return true })
}

// Connections returns the number of connections.
func (p *Pool) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func (p *Pool) drop(unwanted func(key) bool) error {
	var dropped []*grpc.ClientConn
	p.mu.Lock()
	for k, conn := range p.conns {
		if unwanted(k) {
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
