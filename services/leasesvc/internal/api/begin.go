package api

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// begunTime is how long the answers about the caller count that the begin of its call got: as long
// as the process keeps an answer of kube-apiserver. A client may send its message later.
const begunTime = 10 * time.Second

type begunKey struct{}

// begunCall is a call that Begin began.
type begunCall struct {
	sender *sender // nil without limits
	access *access
	at     time.Time
}

// senderIn returns the sender of a call that Begin began; nil without limits.
func senderIn(ctx context.Context) *sender {
	if call, ok := ctx.Value(begunKey{}).(*begunCall); ok {
		return call.sender
	}
	return nil
}

// accessIn returns the access of a unary call: the one that Begin decided with, so that no question
// is asked twice, or a new one if the message came late.
func (s *Server) accessIn(ctx context.Context, caller *authn.Caller) *access {
	if call, ok := ctx.Value(begunKey{}).(*begunCall); ok && time.Since(call.at) < begunTime {
		return call.access
	}
	return s.accessOf(caller)
}

// Begin counts a call in the limits of its caller, and refuses a caller that may beat for no
// holder, before a message is read. It implements rpcserver.HolderAccess.
func (s *Server) Begin(ctx context.Context, caller *authn.Caller, method string) (of context.Context, end func(), err error) {
	call := &begunCall{sender: s.senders.open(caller), access: s.accessOf(caller)}
	if err := s.admitCall(ctx, call, method); err != nil {
		s.senders.close(call.sender)
		return ctx, nil, err
	}
	call.at = time.Now()
	return context.WithValue(ctx, begunKey{}, call), func() { s.senders.close(call.sender) }, nil
}

func (s *Server) admitCall(ctx context.Context, call *begunCall, method string) error {
	sender := call.sender
	if s.senders.tooManyOpen(sender) {
		s.metrics.rejectedStreams.WithLabelValues("too_many_streams").Inc()
		return rpcerror.New(codes.ResourceExhausted, reasonTooManyInFlight,
			fmt.Sprintf("%q has %d streams and calls open, which is the limit; end one first", sender.name, maxOpen), rpcerror.WithRetryAfter(backoff.Jitter(tooManyMessagesPause)))
	}
	if method == leasev1.HeartbeatService_Heartbeat_FullMethodName {
		if _, err := s.directive(sender); err != nil { // a stream counts its messages
			return err
		}
	}
	err := call.access.anyHolder(ctx)
	if err != nil {
		s.metrics.notAuthorized.Inc()
		if sender != nil {
			sender.meter.countRefused(time.Now(), 1)
		}
	}
	return err
}

// Batches returns nil if a caller may beat for all holders of a class. Else the error is that of
// the last class that was asked, which is UNAVAILABLE if kube-apiserver gave no answer.
func (s *Server) Batches(ctx context.Context, caller *authn.Caller) error {
	access := s.accessIn(ctx, caller)
	if access.all {
		return nil
	}
	err := status.Error(codes.PermissionDenied, "no class lets its members beat for each other")
	for id := range session.ClassID(s.Catalog.Len()) {
		if !s.Catalog.Binding(id).Reviewed() {
			continue
		}
		if err = access.review(ctx, id); err == nil || status.Code(err) == codes.Unavailable {
			return err
		}
	}
	return err
}

// anyHolder returns nil if the caller may beat for a holder of any class, or if kube-apiserver
// cannot be asked.
func (a *access) anyHolder(ctx context.Context) error {
	if a.all {
		return nil
	}
	classes := session.ClassID(a.server.Catalog.Len())
	if !a.caller.Forwarded {
		for id := range classes {
			if _, bound := a.server.Catalog.Binding(id).HolderOf(&a.identity); bound {
				return nil
			}
		}
		for id := range classes {
			if !a.server.Catalog.Binding(id).Reviewed() {
				continue
			}
			if err := a.review(ctx, id); err == nil || status.Code(err) != codes.PermissionDenied {
				return nil
			}
		}
	}
	why := "no class binds a holder to this identity; check the client certificate or the token, and the holderRule of the class"
	if a.caller.Forwarded {
		why = "beat over a connection of its own and not through a gateway"
	}
	return rpcerror.New(codes.PermissionDenied, rpcerror.NotAuthorizedReason, fmt.Sprintf("user %q may not beat for any holder: %s", a.identity.User, why))
}
