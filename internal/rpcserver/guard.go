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

// guardUnary admits a call within the limits of its caller, reads its request, decides whether the
// caller may make it, and records mutations and denials.
func (c chain) guardUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, caller, end, err := c.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer end()
	reader := reader{chain: c, caller: caller, method: info.FullMethod}
	asked, err := reader.read(ctx, receiverIn(ctx), request)
	if err != nil {
		c.deny(caller, info.FullMethod, asked, err)
		return nil, err
	}
	if access := c.rules.access[info.FullMethod]; access == nil || !access.changes() {
		return handler(ctx, request)
	}
	return c.recorded(ctx, caller, info.FullMethod, request, asked, handler)
}

// admit decides about a call before a byte of its messages is read: by the limits of its caller,
// and by what of its right needs no message. Its owner calls end.
func (c chain) admit(ctx context.Context, method string) (of context.Context, caller *authn.Caller, end func(), err error) {
	ctx, caller, refused := c.identify(ctx, method)
	var slot quota.Slot
	if !c.admitted {
		if slot, err = c.quota.Admit(quota.CallerOf(caller), method, time.Now()); err != nil {
			return ctx, caller, nil, err
		}
	}
	if refused == nil {
		var ended func()
		if ctx, ended, refused = c.begin(ctx, caller, method); refused == nil {
			return ctx, caller, func() { ended(); slot.Release() }, nil
		}
	}
	slot.Release()
	c.deny(caller, method, wanted{}, refused)
	return ctx, caller, nil, refused
}

// recorded calls the handler of a mutation and records its outcome, also of a panic.
func (c chain) recorded(ctx context.Context, caller *authn.Caller, method string, request any, asked wanted, handler grpc.UnaryHandler) (response any, err error) {
	begun, returned := time.Now(), false
	record := c.record(caller, method, asked, audit.Allowed)
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
func (c chain) deny(caller *authn.Caller, method string, asked wanted, refused error) {
	reason := rpcerror.ReasonOf(refused)
	switch reason {
	case rpcerror.NotAuthenticatedReason, rpcerror.NotAuthorizedReason, rpcerror.AccessReviewUnavailableReason:
	default:
		return
	}
	record := c.record(caller, method, asked, audit.Denied)
	record.Code, record.Reason, record.DecisionReason = status.Code(refused), string(reason), authn.Redact(status.Convert(refused).Message())
	c.audit.Write(record)
}

// record returns the record of a call.
func (c chain) record(caller *authn.Caller, method string, asked wanted, decision audit.Decision) audit.Record {
	return audit.Record{
		Caller: caller, Method: method, Decision: decision, Object: authn.Redact(asked.object), RequestID: authn.Redact(asked.requestID),
	}
}

// guardStream is guardUnary for streams: each request is decided before the handler sees it, and
// the stream ends when its caller loses the right.
func (c chain) guardStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	method := info.FullMethod
	if service == nil {
		method = quota.UnknownMethod
	}
	ctx, caller, end, err := c.admit(stream.Context(), method)
	if err != nil {
		return err
	}
	defer end()
	reader := reader{chain: c, caller: caller, method: method}
	access := c.rules.access[method]
	if access == nil || access.rule.GetResource() == nil || caller.Unchecked {
		return handler(service, &readingStream{ServerStream: stream, ctx: ctx, reader: reader})
	}
	guarded := newGuardedStream(ctx, stream, reader)
	defer guarded.end()
	err = handler(service, guarded)
	if lost := guarded.lost(); lost != nil && (err == nil || isCancellation(err)) {
		return lost
	}
	return err
}
