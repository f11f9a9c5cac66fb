package rpcserver

import (
	"context"
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/trivet-dev/trivet/internal/authn"
)

type refusalKey struct{}

// identify finds the caller of a call, once, and puts it into the context. The caller is never nil,
// and anonymous if its credentials do not count. refused says why the call is refused before its
// request is read. The metadata in which a gateway names an original caller is removed, so that
// nothing behind it can read what is not verified.
func (c chain) identify(ctx context.Context, method string) (_ context.Context, caller *authn.Caller, refused error) {
	if caller, known := authn.InContext(ctx); known {
		refused, _ := ctx.Value(refusalKey{}).(error)
		return ctx, caller, refused
	}
	caller, refused = c.authenticate(ctx)
	if refused != nil && c.isPublic(method) {
		refused = nil
	}
	if refused == nil {
		refused = c.authorizeMethod(caller, method)
	}
	ctx = authn.NewContext(authn.WithoutRemote(ctx), caller)
	if refused != nil {
		ctx = context.WithValue(ctx, refusalKey{}, refused)
	}
	return ctx, caller, refused
}

// authenticate always returns a caller. A panic ends the call, as one of a handler does: this runs
// outside the interceptor that recovers.
func (c chain) authenticate(ctx context.Context) (caller *authn.Caller, err error) {
	request := authn.Request{Values: func(key string) []string { return metadata.ValueFromIncomingContext(ctx, key) }}
	if from, ok := peer.FromContext(ctx); ok {
		if from.Addr != nil {
			request.Address = from.Addr.String()
		}
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			request.TLS = &info.State
		}
	}
	if c.authenticator == nil {
		caller = anonymous(request.Address)
		caller.Unchecked = true
		return caller, nil
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			c.metrics.panics.Inc()
			caller, err = anonymous(request.Address), panicError(panicked, string(debug.Stack()))
		}
	}()
	if caller, err = c.authenticator.Authenticate(ctx, request); err != nil {
		return anonymous(request.Address), err
	}
	return caller, nil
}

func anonymous(address string) *authn.Caller {
	return &authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous(), Address: address}
}

// identifyBeforeDecoding returns a copy of a service whose unary methods find the caller first.
// gRPC would decode a request before the first interceptor. The request of a caller that is refused
// anyway remains encoded; the interceptors answer it. They also answer a request that cannot be
// decoded: it counts for the limits, the metrics and the log.
func (c chain) identifyBeforeDecoding(service *grpc.ServiceDesc) *grpc.ServiceDesc {
	guarded := *service
	guarded.Methods = make([]grpc.MethodDesc, len(service.Methods))
	for i, method := range service.Methods {
		inner, name := method.Handler, fmt.Sprintf("/%s/%s", service.ServiceName, method.MethodName)
		method.Handler = func(srv any, ctx context.Context, decode func(any) error, chained grpc.UnaryServerInterceptor) (any, error) {
			ctx, _, refused := c.identify(ctx, name)
			var malformed error
			return inner(srv, ctx, func(request any) error {
				if refused == nil {
					received := received{message: request}
					if err := decode(&received); err != nil {
						return err
					}
					if received.err != nil {
						malformed = received.malformed()
					}
				}
				return nil
			}, func(_ context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if malformed != nil {
					return chained(context.WithValue(ctx, malformedKey{}, malformed), request, info, handler)
				}
				return chained(ctx, request, info, handler)
			})
		}
		guarded.Methods[i] = method
	}
	return &guarded
}

func (c chain) identifyStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, _, _ := c.identify(stream.Context(), info.FullMethod)
	return handler(service, &decodingStream{ServerStream: stream, ctx: ctx})
}
