package rpcserver

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

func logUnary(logger *slog.Logger, options ...logging.Option) grpc.UnaryServerInterceptor {
	return logging.UnaryServerInterceptor(adapt(logger), append(logOptions(), options...)...)
}

func logStream(logger *slog.Logger, options ...logging.Option) grpc.StreamServerInterceptor {
	all := append(logOptions(), logging.WithLevels(streamLevelOf))
	return logging.StreamServerInterceptor(adapt(logger), append(all, options...)...)
}

// Callers without an identity cause warnings, so their number is limited. Metrics count each call.
const (
	warningsPerSecond = 10
	warningBurst      = 100
)

// adapt returns a logger for the interceptor. Its levels have the values of slog's. Errors and user
// names have what callers gave, which may be a token by mistake.
func adapt(logger *slog.Logger) logging.Logger {
	warnings := rate.NewLimiter(warningsPerSecond, warningBurst)
	var suppressed atomic.Int64
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		if !logger.Enabled(ctx, slog.Level(level)) {
			return
		}
		if level == logging.LevelWarn {
			if !warnings.Allow() {
				suppressed.Add(1)
				return
			}
			if before := suppressed.Swap(0); before > 0 {
				fields = append(fields, "suppressed", before)
			}
		}
		fields = append(fields, callerFields(authn.FromContext(ctx))...)
		for i, field := range fields {
			if text, ok := field.(string); ok {
				fields[i] = authn.Redact(text)
			}
		}
		logger.Log(ctx, slog.Level(level), message, fields...)
	})
}

// callerFields names the user in the log line of a call, and the gateway if it forwards the call.
func callerFields(caller *authn.Caller) []any {
	switch {
	case caller.Unchecked:
		return nil
	case caller.Forwarded:
		return []any{"user", caller.User.Name, "forwarded_by", caller.Peer.Name}
	default:
		return []any{"user", caller.User.Name}
	}
}

func logOptions() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(levelOf),
		logging.WithDurationField(logging.DurationToDurationField),
		logging.WithErrorFields(errorFields),
		// "protocol=grpc" and "grpc.component=server" are the same on every line.
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey),
	}
}

// quietly logs probes at debug level, because the prober receives the failure.
func quietly() logging.Option {
	return logging.WithLevels(func(codes.Code) logging.Level { return logging.LevelDebug })
}

// streamLevelOf is levelOf, except that a stream that ends with UNAVAILABLE is logged at debug: at
// a stop or a failover there is one for each client. The metrics count them.
func streamLevelOf(code codes.Code) logging.Level {
	if code == codes.Unavailable {
		return logging.LevelDebug
	}
	return levelOf(code)
}

// levelOf returns the log level of a result: debug for success, because heartbeats are many, and
// for calls that the caller has cancelled; info for mistakes of callers, for NOT_LEADER and for
// UNAVAILABLE, which is mostly NO_LEADER; warning for overload and refused callers; error for
// defects.
func levelOf(code codes.Code) logging.Level {
	switch code {
	case codes.OK, codes.Canceled:
		return logging.LevelDebug
	case codes.DeadlineExceeded, codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated:
		return logging.LevelWarn
	case codes.Unknown, codes.Internal, codes.DataLoss:
		return logging.LevelError
	default:
		return logging.LevelInfo
	}
}

// errorFields adds the cause that the caller did not receive.
func errorFields(err error) logging.Fields {
	fields := logging.Fields{"grpc.reason", string(rpcerror.ReasonOf(err))}
	var hidden *hiddenError
	if !errors.As(err, &hidden) {
		return fields
	}
	fields = append(fields, "cause", hidden.cause.Error())
	if hidden.stack != "" {
		fields = append(fields, "stack", hidden.stack)
	}
	return fields
}
