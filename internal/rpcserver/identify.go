package rpcserver

import (
	"context"
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
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
	if size, large := ctx.Value(largeHeadersKey{}).(int); large && caller.Role != authn.Gateway {
		refused = rpcerror.New(codes.ResourceExhausted, quota.MessageTooLargeReason, fmt.Sprintf("the headers of the call have %d bytes, which only a gateway may send", size))
	}
	ctx = authn.NewContext(authn.WithoutRemote(ctx), caller)
	if refused != nil {
		ctx = context.WithValue(ctx, refusalKey{}, refused)
	}
	return ctx, caller, refused
}

type largeHeadersKey struct{}

// markLargeHeaders returns a handler that remembers the size of headers above a limit, without that
// of a token, which may name many groups. gRPC applies one limit to all callers.
func markLargeHeaders(limit int) tap.ServerInHandle {
	return func(ctx context.Context, call *tap.Info) (context.Context, error) {
		size := 0
		for key, values := range call.Header {
			if key == "authorization" {
				continue
			}
			for _, value := range values {
				size += len(key) + len(value) + 32 // as HTTP/2 counts them
			}
		}
		if size > limit {
			ctx = context.WithValue(ctx, largeHeadersKey{}, size)
		}
		return ctx, nil
	}
}

// authenticate always returns a caller. A panic ends the call, as one of a handler does: this runs
// outside the interceptor that recovers.
func (c chain) authenticate(ctx context.Context) (caller *authn.Caller, err error) {
	request := authn.Request{
		Values:      func(key string) []string { return metadata.ValueFromIncomingContext(ctx, key) },
		Connections: c.connections,
	}
	if from, ok := peer.FromContext(ctx); ok {
		request.Connection = from.LocalAddr
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
