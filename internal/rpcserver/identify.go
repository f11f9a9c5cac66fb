package rpcserver

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/trivet-dev/trivet/internal/authn"
)

// identification is who calls, and why the call is refused before its request is read.
type identification struct {
	// caller is never nil. It is anonymous if its credentials do not count.
	caller  *authn.Caller
	refused error
}

type identificationKey struct{}

// identify finds the caller of a call, once, and puts it into the context, also for the log. It
// removes the metadata in which a gateway names an original caller, so that nothing behind it can
// read what is not verified.
func (c chain) identify(ctx context.Context, method string) (context.Context, *identification) {
	if found, ok := ctx.Value(identificationKey{}).(*identification); ok {
		return ctx, found
	}
	caller, err := c.authenticate(ctx)
	if err != nil {
		caller.User, caller.Peer = authn.Anonymous(), authn.Anonymous()
		if c.isPublic(method) {
			err = nil
		}
	}
	if err == nil {
		err = c.authorizeMethod(caller, method)
	}
	found := &identification{caller: caller, refused: err}
	ctx = authn.NewContext(authn.WithoutRemote(ctx), caller)
	if !caller.Unchecked {
		ctx = logging.InjectFields(ctx, callerFields(caller))
	}
	return context.WithValue(ctx, identificationKey{}, found), found
}

// callerFields names the user in the log line of a call, and the gateway if it forwards the call.
func callerFields(caller *authn.Caller) logging.Fields {
	if caller.Forwarded {
		return logging.Fields{"user", caller.User.Name, "forwarded_by", caller.Peer.Name}
	}
	return logging.Fields{"user", caller.User.Name}
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
	anonymous := &authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous(), Address: request.Address}
	if c.authenticator == nil {
		anonymous.Unchecked = true
		return anonymous, nil
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			c.metrics.panics.Inc()
			caller, err = anonymous, panicError(panicked, string(debug.Stack()))
		}
	}()
	if caller, err = c.authenticator.Authenticate(ctx, request); err != nil {
		return anonymous, err
	}
	return caller, nil
}

// identifyBeforeDecoding returns a copy of a service whose unary methods find the caller first.
// gRPC would decode a request before the first interceptor. The request of a caller that is refused
// anyway remains encoded; the interceptors answer it.
func (c chain) identifyBeforeDecoding(service *grpc.ServiceDesc) *grpc.ServiceDesc {
	guarded := *service
	guarded.Methods = make([]grpc.MethodDesc, len(service.Methods))
	for i, method := range service.Methods {
		inner, name := method.Handler, fmt.Sprintf("/%s/%s", service.ServiceName, method.MethodName)
		method.Handler = func(srv any, ctx context.Context, decode func(any) error, chained grpc.UnaryServerInterceptor) (any, error) {
			ctx, found := c.identify(ctx, name)
			if found.refused != nil {
				decode = func(any) error { return nil }
			}
			return inner(srv, ctx, decode, chained)
		}
		guarded.Methods[i] = method
	}
	return &guarded
}

func (c chain) identifyStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, _ := c.identify(stream.Context(), info.FullMethod)
	return handler(service, &streamWithContext{ServerStream: stream, ctx: ctx})
}
