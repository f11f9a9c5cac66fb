package rpcserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	grpcmetrics "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// chain is what every call passes, outermost first. The package documentation says why in this order.
type chain struct {
	logger   *slog.Logger
	metrics  *metrics
	rules    *rules
	stopping context.Context
}

func (c chain) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		c.metrics.server.UnaryServerInterceptor(),
		selector.UnaryServerInterceptor(logUnary(c.logger), selector.MatchFunc(isOurs)),
		selector.UnaryServerInterceptor(logUnary(c.logger, quietly()), selector.MatchFunc(isProbe)),
		translateUnary,
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(c.metrics.recovered)),
		selector.UnaryServerInterceptor(protovalidate.UnaryServerInterceptor(c.rules), selector.MatchFunc(c.rules.apply)),
	}
}

func (c chain) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		knownMethods(c.sparing(c.metrics.server.StreamServerInterceptor())),
		selector.StreamServerInterceptor(callsOnly(logStream(c.logger)), selector.MatchFunc(isOurs)),
		selector.StreamServerInterceptor(callsOnly(logStream(c.logger, quietly())), selector.MatchFunc(isProbe)),
		c.endWithServer,
		translateStream,
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(c.metrics.recovered)),
		selector.StreamServerInterceptor(protovalidate.StreamServerInterceptor(c.rules), selector.MatchFunc(c.rules.apply)),
	}
}

// sparing keeps inner from the messages of methods that are checked by their handlers because they are hot: those count what
// matters of them, too. Their calls are seen as ever.
func (c chain) sparing(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	calls := callsOnly(inner)
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if c.rules.skipped[info.FullMethod] {
			return calls(service, stream, info, handler)
		}
		return inner(service, stream, info, handler)
	}
}

// callsOnly lets an interceptor see the beginning and the end of a stream and the context that it makes, and no message: one
// that does nothing with messages would read the clock twice for each.
func callsOnly(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return inner(service, stream, info, func(service any, watched grpc.ServerStream) error {
			return handler(service, &streamWithContext{ServerStream: stream, ctx: watched.Context()})
		})
	}
}

// isProbe matches the services that machines and tools ask all the time.
func isProbe(_ context.Context, call interceptors.CallMeta) bool {
	return strings.HasPrefix(call.Service, "grpc.health.") || strings.HasPrefix(call.Service, "grpc.reflection.")
}

func isOurs(ctx context.Context, call interceptors.CallMeta) bool { return !isProbe(ctx, call) }

// unknownMethod answers calls of methods that do not exist. gRPC would do so by itself, but outside the chain and thus
// without an ErrorInfo and a log line.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return rpcerror.New(codes.Unimplemented, rpcerror.UnknownMethodReason, "unknown method "+method)
}

// knownMethods keeps calls of unknown methods from inner: callers invent those names, and as labels of metrics they would
// fill the memory. gRPC passes such calls without a service implementation.
func knownMethods(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if service == nil {
			return handler(service, stream)
		}
		return inner(service, stream, info, handler)
	}
}

// endWithServer ends the context of a stream when the server begins to stop, with SHUTTING_DOWN as its cause. Unary calls
// are left to finish. A handler that waits in Recv does not see the end; its stream lasts until the client closes it or
// the drain timeout cuts it, unless the handler also watches its context.
func (c chain) endWithServer(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	forget := context.AfterFunc(c.stopping, func() { end(rpcerror.ShuttingDown()) })
	defer forget()
	return handler(service, &streamWithContext{ServerStream: stream, ctx: ctx})
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }

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
