package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

type heartbeatStream = grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]

// StreamHeartbeats registers and renews the holders of a client until the client or the last shard
// leaves.
func (s *Server) StreamHeartbeats(rpc heartbeatStream) error {
	sessions, err := s.runningSessions()
	if err != nil {
		return s.statusOf(err)
	}
	lost, held := sessions.Leadership()
	if !held {
		return s.statusOf(sessioncontroller.ErrStopped) // this replica can accept no holder
	}
	caller, sender := authn.FromContext(rpc.Context()), senderIn(rpc.Context())
	if !s.admitStream(sender, time.Now()) {
		s.metrics.rejectedStreams.WithLabelValues("registration_rate_limited").Inc()
		longest := s.Catalog.ShortestGrace() / graceShare
		return rpcerror.New(codes.Unavailable, reasonRegistrationRateLimited, "new streams are rate-limited; open this one later",
			rpcerror.WithRetryAfter(jitter(min(2*s.newStreams.retryAfter(time.Now()), longest))))
	}
	s.openStreams.Add(1)
	defer s.openStreams.Add(-1)
	credential := s.watchCredential(caller)
	defer credential.stop()
	if sender != nil {
		sender.credential = credential
	}
	stream := &stream{rpc: rpc, responder: newResponder(s, sessions, caller, sender)}
	var ended outcome
	defer func() { stream.responder.serving.end(s, isLost(rpc.Context(), ended)) }()

	// Only a return from this handler ends the stream, and a goroutine that blocks in RecvMsg
	// cannot return. So another goroutine receives. It ends after this handler has returned,
	// because gRPC then cancels the stream.
	done := make(chan outcome, 1)
	go stream.run(done)
	for {
		select {
		case ended = <-done:
			ended.repanic()
			if errors.Is(ended.err, sessioncontroller.ErrStopped) {
				return stream.end(ended.err)
			}
			return s.statusOf(ended.err)
		case <-lost:
			return stream.end(sessioncontroller.ErrStopped)
		case <-sessions.Done():
			return stream.end(sessioncontroller.ErrStopped)
		case <-rpc.Context().Done():
			ended.err = context.Cause(rpc.Context())
			return stream.end(ended.err)
		case err := <-credential.reviewed:
			if err := credential.apply(err); err != nil {
				s.metrics.rejectedStreams.WithLabelValues("not_authenticated").Inc()
				return err
			}
		case <-credential.due():
			if err := credential.next(rpc.Context()); err != nil {
				s.metrics.rejectedStreams.WithLabelValues("not_authenticated").Inc()
				return err
			}
		}
	}
}

// serving counts a stream from its first registered holder to its end.
type serving struct {
	state atomic.Int32 // 0, and then servingBegun, servingEnded or both in turn
}

const (
	servingBegun = 1
	servingEnded = 2
)

// begin is called with each registered holder.
func (v *serving) begin(s *Server) {
	if v.state.Load() == 0 && v.state.CompareAndSwap(0, servingBegun) {
		s.servingStreams.Add(1)
	}
}

// end is called once, at the end of the stream.
func (v *serving) end(s *Server, lost bool) {
	if v.state.Swap(servingEnded) != servingBegun {
		return
	}
	s.servingStreams.Add(-1)
	if lost {
		s.lostStreams.Add(1)
	}
}

// isLost returns true if a stream ended because its client is gone. ctx is the context of the
// stream. It has a cause with a reason if this replica ended the stream. RecvMsg returns by gRPC's
// context, from which ctx is derived, so ctx may end after an error of RecvMsg.
func isLost(ctx context.Context, ended outcome) bool {
	if rpcerror.ReasonOf(ended.err) != "" || rpcerror.ReasonOf(context.Cause(ctx)) != "" {
		return false
	}
	if !ended.transport && ctx.Err() == nil {
		return false // a call that a response needs has failed
	}
	code := status.Code(ended.err)
	return errors.Is(ended.err, context.Canceled) || errors.Is(ended.err, context.DeadlineExceeded) ||
		code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unavailable
}

// stream is the transport of one heartbeat stream. Its responder belongs to the goroutine in run.
type stream struct {
	rpc       heartbeatStream
	responder *responder

	sending sync.Mutex // guards ended and sends on rpc
	// answered is set after the first response, and ended once nothing may be sent any more.
	answered, ended bool
}

// outcome is how the receiving goroutine ended.
type outcome struct {
	err       error
	transport bool // err is an error of RecvMsg or SendMsg
	panic     any
	stack     []byte
}

// repanic panics in the handler's goroutine if the receiving goroutine panicked, so that only this
// call fails.
func (o outcome) repanic() {
	if o.panic != nil {
		panic(fmt.Sprintf("%v\n%s", o.panic, o.stack))
	}
}

func (s *stream) run(done chan<- outcome) {
	defer func() {
		if value := recover(); value != nil {
			done <- outcome{panic: value, stack: debug.Stack()}
		}
	}()
	done <- s.serve()
}

func (s *stream) serve() outcome {
	r := s.responder
	for {
		if err := s.rpc.RecvMsg(&r.request); err != nil {
			if errors.Is(err, io.EOF) {
				return outcome{}
			}
			return outcome{err: err, transport: true}
		}
		if err := r.respond(s.rpc.Context(), &r.request); err != nil {
			return outcome{err: err}
		}
		if sent, err := s.send(&r.response); err != nil || !sent {
			return outcome{err: err, transport: true}
		}
		if r.superseded && r.live == 0 {
			return outcome{err: sessioncontroller.ErrSuperseded}
		}
		r.releaseMemory()
	}
}

// send returns false if the stream has ended.
func (s *stream) send(response *leasev1.StreamHeartbeatsResponse) (sent bool, err error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ended {
		return false, nil
	}
	if !s.answered {
		s.answered = true
		response.ServerInfo, response.Limits = s.responder.server.info, s.responder.limits()
	}
	return true, s.rpc.SendMsg(response)
}

// end ends the stream with the status of err. If the server ends it, and not the client, it first
// names another replica.
func (s *stream) end(err error) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.ended = true
	server := s.responder.server
	if errors.Is(err, sessioncontroller.ErrStopped) || rpcerror.ReasonOf(err) == rpcerror.ShuttingDownReason {
		// If the message is lost, the status has the same information.
		_ = s.rpc.Send(&leasev1.StreamHeartbeatsResponse{
			Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE, RedirectAddress: server.Owners().Any(),
		})
	}
	return server.statusOf(err)
}
