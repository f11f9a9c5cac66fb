package rpcserver

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// guardUnary admits a call within the limits of its caller, decides whether the caller may make it,
// and records mutations and denials.
func (c chain) guardUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, caller, refused := c.identify(ctx, info.FullMethod)
	slot, err := c.quota.Admit(quota.CallerOf(caller), info.FullMethod, time.Now())
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	if refused != nil {
		c.deny(caller, info.FullMethod, nil, refused)
		return nil, refused
	}
	if err := malformedIn(ctx); err != nil {
		return nil, err
	}
	if err := c.quota.CheckSize(info.FullMethod, request); err != nil {
		return nil, err
	}
	if err := c.authorizeRequest(ctx, caller, info.FullMethod, request); err != nil {
		c.deny(caller, info.FullMethod, request, err)
		return nil, err
	}
	if access := c.rules.access[info.FullMethod]; access == nil || !access.changes() {
		return handler(ctx, request)
	}
	return c.recorded(ctx, caller, info.FullMethod, request, handler)
}

// recorded calls the handler of a mutation and records its outcome, also of a panic.
func (c chain) recorded(ctx context.Context, caller *authn.Caller, method string, request any, handler grpc.UnaryHandler) (response any, err error) {
	begun, returned := time.Now(), false
	record := c.record(caller, method, request, audit.Allowed)
	defer func() {
		record.Duration = time.Since(begun)
		if record.Code, record.Reason = codes.Internal, string(rpcerror.PanicReason); returned {
			sent := translate(ctx, err)
			record.Code, record.Reason = status.Code(sent), string(rpcerror.ReasonOf(sent))
		}
		c.audit.Write(record)
	}()
	response, err = handler(ctx, request)
	returned = true
	return response, err
}

// deny records a refused call. What ends the call otherwise, such as its own deadline, is no
// decision.
func (c chain) deny(caller *authn.Caller, method string, request any, refused error) {
	reason := rpcerror.ReasonOf(refused)
	switch reason {
	case rpcerror.NotAuthenticatedReason, rpcerror.NotAuthorizedReason, rpcerror.AccessReviewUnavailableReason:
	default:
		return
	}
	record := c.record(caller, method, request, audit.Denied)
	record.Code, record.Reason, record.DecisionReason = status.Code(refused), string(reason), authn.Redact(status.Convert(refused).Message())
	c.audit.Write(record)
}

// record returns the record of a call; request is nil if it was not read.
func (c chain) record(caller *authn.Caller, method string, request any, decision audit.Decision) audit.Record {
	record := audit.Record{Caller: caller, Method: method, Decision: decision}
	if access := c.rules.access[method]; access != nil && request != nil {
		record.Object = authn.Redact(stringOf(request, access.name))
		record.RequestID = authn.Redact(stringOf(request, access.requestID))
	}
	return record
}

// guardStream is guardUnary for streams: each request is decided before the handler sees it, and
// the stream ends when its caller loses the right.
func (c chain) guardStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, caller, refused := c.identify(stream.Context(), info.FullMethod)
	slot, err := c.quota.Admit(quota.CallerOf(caller), info.FullMethod, time.Now())
	if err != nil {
		return err
	}
	defer slot.Release()
	if refused != nil {
		c.deny(caller, info.FullMethod, nil, refused)
		return refused
	}
	access := c.rules.access[info.FullMethod]
	if access == nil || access.rule.GetResource() == nil || caller.Unchecked {
		return handler(service, &streamWithContext{ServerStream: stream, ctx: ctx})
	}
	guarded := newGuardedStream(ctx, stream, c, caller, info.FullMethod)
	defer guarded.end()
	err = handler(service, guarded)
	if lost := guarded.lost(); lost != nil && (err == nil || isCancellation(err)) {
		return lost
	}
	return err
}
