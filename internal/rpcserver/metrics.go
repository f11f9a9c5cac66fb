package rpcserver

import (
	"context"
	"fmt"
	"runtime/debug"

	grpcmetrics "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the server's collectors.
type metrics struct {
	server *grpcmetrics.ServerMetrics
	panics prometheus.Counter
}

// newMetrics registers the collectors with into, unless it is nil.
func newMetrics(into prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		server: grpcmetrics.NewServerMetrics(grpcmetrics.WithServerHandlingTimeHistogram(
			// From a heartbeat in memory to a list of everything. Long-lived streams end in the last bucket.
			grpcmetrics.WithHistogramBuckets([]float64{0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5, 30}),
		)),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_rpc_panics_total",
			Help: "Calls that ended because their handler panicked. Each is a defect; the stack is in the log.",
		}),
	}
	if into == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.server, m.panics} {
		if err := into.Register(collector); err != nil {
			return nil, fmt.Errorf("register gRPC metrics (one registry takes one server): %w", err)
		}
	}
	return m, nil
}

// recovered makes an error of what a handler panicked with. It runs while the panicking frames are still on the stack.
func (m *metrics) recovered(_ context.Context, panicked any) error {
	m.panics.Inc()
	return panicError(panicked, string(debug.Stack()))
}
