package rpcserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	grpcmetrics "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// chain builds the interceptors, outermost first. The package documentation explains the order.
type chain struct {
	logger   *slog.Logger
	refusals logging.Logger // of Server.Admit
	metrics  *metrics
	rules    *rules
	answers  *answers
	stopping context.Context
	cluster  string
	// authenticator is nil if the server authorizes nothing.
	authenticator Authenticator
	authorizer    *authz.Authorizer
	holders       HolderAccess // nil if no method is about holders
	maxRecvBytes  int
	quota         *quota.Quota // nil admits every call
	admitted      bool         // Server.Admit has counted each call
	connections   *connlimit.Limiter
	audit         *audit.Log // nil records nothing
}

func (c chain) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		c.metrics.server.UnaryServerInterceptor(),
		selector.UnaryServerInterceptor(logUnary(c.logger), selector.MatchFunc(isOurs)),
		selector.UnaryServerInterceptor(logUnary(c.logger, quietly()), selector.MatchFunc(isProbe)),
		translateUnary,
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(c.metrics.recovered)),
		c.guardUnary,
		c.checkUnary,
	}
}

func (c chain) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		c.identifyStream,
		knownMethods(c.callsOnlyIfUnvalidated(c.metrics.server.StreamServerInterceptor())),
		knownMethods(selector.StreamServerInterceptor(callsOnly(logStream(c.logger)), selector.MatchFunc(isOurs))),
		knownMethods(selector.StreamServerInterceptor(callsOnly(logStream(c.logger, quietly())), selector.MatchFunc(isProbe))),
		unknownMethods(callsOnly(logStream(c.logger, quietly()))),
		c.endWithServer,
		translateStream,
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(c.metrics.recovered)),
		c.guardStream,
		c.checkStream,
	}
}

// callsOnlyIfUnvalidated hides the messages of unvalidated methods from inner. These methods are
// hot and count their messages themselves. inner still sees their calls.
func (c chain) callsOnlyIfUnvalidated(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	calls := callsOnly(inner)
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if c.rules.skipped[info.FullMethod] {
			return calls(service, stream, info, handler)
		}
		return inner(service, stream, info, handler)
	}
}

// callsOnly hides the messages of a stream from an interceptor, which sees only start, end and
// context. The metrics and logging interceptors would read the clock twice for each message.
func callsOnly(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return inner(service, stream, info, func(service any, watched grpc.ServerStream) error {
			return handler(service, &streamWithContext{ServerStream: stream, ctx: watched.Context()})
		})
	}
}

// isProbe matches health checks and reflection, which tools call frequently.
func isProbe(_ context.Context, call interceptors.CallMeta) bool {
	return strings.HasPrefix(call.Service, "grpc.health.") || strings.HasPrefix(call.Service, "grpc.reflection.")
}

func isOurs(ctx context.Context, call interceptors.CallMeta) bool { return !isProbe(ctx, call) }

// unknownMethod answers calls of unknown methods. gRPC would do so outside the chain, without an
// ErrorInfo and without a log line.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return rpcerror.New(codes.Unimplemented, rpcerror.UnknownMethodReason, "unknown method "+shorten(method))
}

// unknownMethods shows inner only the calls of unknown methods, with the beginnings of their names.
func unknownMethods(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if service != nil {
			return handler(service, stream)
		}
		named := *info
		named.FullMethod = shorten(info.FullMethod)
		return inner(service, stream, &named, handler)
	}
}

// knownMethods hides calls of unknown methods from inner. Callers choose these names, and as metric
// labels they would use unbounded memory. gRPC passes such calls without a service.
func knownMethods(inner grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if service == nil {
			return handler(service, stream)
		}
		return inner(service, stream, info, handler)
	}
}

// endWithServer ends the context of a stream when the server begins to stop, with the cause
// SHUTTING_DOWN. Unary calls finish. A handler that waits in Recv and does not watch its context
// runs until the client closes the stream or the drain timeout ends it.
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

type metrics struct {
	server *grpcmetrics.ServerMetrics
	panics prometheus.Counter
}

// newMetrics registers the collectors with into unless it is nil.
func newMetrics(into prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		server: grpcmetrics.NewServerMetrics(grpcmetrics.WithServerHandlingTimeHistogram(
			// From a heartbeat to a complete list. Long-lived streams are in the last bucket.
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

// recovered converts a panic to an error. It runs on the stack of the panic.
func (m *metrics) recovered(_ context.Context, panicked any) error {
	m.panics.Inc()
	return panicError(panicked, string(debug.Stack()))
}
