package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Dial makes a connection to a member's gRPC server without contacting it.
type Dial func(member term.Member) (*grpc.ClientConn, error)

// Config is what a Fan needs.
type Config struct {
	Dial Dial
	// Timeout bounds how long one replica may take to answer.
	Timeout time.Duration
	// Metrics takes the counters of the calls.
	Metrics prometheus.Registerer
}

// Fan asks replicas. It is safe for concurrent use.
type Fan struct {
	dial    Dial
	timeout time.Duration
	metrics *metrics

	mu    sync.Mutex // guards conns and closed; not held during a call
	conns map[key]*grpc.ClientConn
	// closed is set once and ends every later round before it dials.
	closed bool
}

// key names one process: its id is new at every start.
type key struct{ service, id, address string }

// New returns a Fan without connections. The error is a metric that is registered already.
func New(cfg Config) (*Fan, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	return &Fan{dial: cfg.Dial, timeout: cfg.Timeout, metrics: m, conns: map[key]*grpc.ClientConn{}}, nil
}

// Ask asks every member and returns when all have answered or failed, at the latest after the timeout. The sources are in the
// order of the members.
func (f *Fan) Ask(ctx context.Context, members []term.Member) []merge.Source {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	sources := make([]merge.Source, len(members))
	var calls sync.WaitGroup
	for i, member := range members {
		calls.Go(func() { sources[i] = f.ask(ctx, member) })
	}
	calls.Wait()
	return sources
}

// Keep closes the connections to all but these members. A call under way to one that left fails, as it would anyway.
func (f *Fan) Keep(members []term.Member) error {
	keep := make(map[key]bool, len(members))
	for _, member := range members {
		keep[keyOf(member)] = true
	}
	return f.drop(func(k key) bool { return !keep[k] })
}

// Close closes all connections; asking fails from then on. It may be called again.
func (f *Fan) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	return f.drop(func(key) bool { return true })
}

// Connections counts the replicas to which a connection is kept.
func (f *Fan) Connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

func (f *Fan) ask(ctx context.Context, member term.Member) merge.Source {
	started := time.Now()
	answer, err := f.call(ctx, member)
	source := merge.Source{Replica: replicaOf(member), Answer: answer, Latency: time.Since(started)}
	source.Code = codeName(err)
	if err != nil {
		source.Answer, source.Message = nil, f.explain(err)
	}
	f.metrics.observe(member.Service, source.Code, source.Latency)
	return source
}

func (f *Fan) call(ctx context.Context, member term.Member) (*statusv1.GetStatusResponse, error) {
	if member.GRPCAddress == "" {
		return nil, status.Error(codes.FailedPrecondition, "it is registered without a gRPC address")
	}
	conn, err := f.connection(member)
	if err != nil {
		return nil, err
	}
	return statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
}

func (f *Fan) connection(member term.Member) (*grpc.ClientConn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, status.Error(codes.Unavailable, "this gateway is shutting down")
	}
	if conn, ok := f.conns[keyOf(member)]; ok {
		return conn, nil
	}
	conn, err := f.dial(member)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", member.GRPCAddress, err)
	}
	f.conns[keyOf(member)] = conn
	return conn, nil
}

func (f *Fan) drop(left func(key) bool) error {
	var dropped []*grpc.ClientConn
	f.mu.Lock()
	for k, conn := range f.conns {
		if left(k) {
			dropped = append(dropped, conn)
			delete(f.conns, k)
		}
	}
	f.mu.Unlock()

	var errs []error
	for _, conn := range dropped {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// explain says for people what an error means. gRPC words a deadline as if the caller had set it.
func (f *Fan) explain(err error) string {
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %s", f.timeout)
	}
	return status.Convert(err).Message()
}

func keyOf(member term.Member) key {
	return key{service: member.Service, id: member.ID, address: member.GRPCAddress}
}

// codeName gives the canonical name, for example DEADLINE_EXCEEDED; grpc-go's own String is in camel case.
func codeName(err error) string {
	c := int32(status.Code(err))
	if name, ok := code.Code_name[c]; ok {
		return name
	}
	return fmt.Sprintf("CODE_%d", c)
}
