package fanout

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Config is what a Fan needs.
type Config struct {
	// Pool has the connections. It stays its owner's.
	Pool *Pool
	// Timeout bounds how long one replica may take to answer.
	Timeout time.Duration
	// Metrics takes the counters of the calls.
	Metrics prometheus.Registerer
}

// Fan asks replicas. It is safe for concurrent use.
type Fan struct {
	pool    *Pool
	timeout time.Duration
	metrics *metrics
}

// New returns a Fan. The error is a metric that is registered already.
func New(cfg Config) (*Fan, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	return &Fan{pool: cfg.Pool, timeout: cfg.Timeout, metrics: m}, nil
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

func (f *Fan) ask(ctx context.Context, member term.Member) merge.Source {
	started := time.Now()
	answer, err := f.call(ctx, member)
	source := merge.Source{Replica: replicaOf(member), Answer: answer, Latency: time.Since(started)}
	source.Code = codeName(err)
	if err != nil {
		source.Answer, source.Message = nil, explain(err, f.timeout)
	}
	f.metrics.observe(member.Service, source.Code, source.Latency)
	return source
}

func (f *Fan) call(ctx context.Context, member term.Member) (*statusv1.GetStatusResponse, error) {
	conn, err := f.pool.Connection(member)
	if err != nil {
		return nil, err
	}
	return statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
}
