package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/backoff"
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
			rpcerror.WithRetryAfter(backoff.Jitter(min(2*s.newStreams.retryAfter(time.Now()), longest))))
	}
	s.openStreams.Add(1)
	defer s.openStreams.Add(-1)
	credential := s.watchCredential(caller)
	defer credential.stop()
	if sender != nil {
		sender.credential = credential
	}
	stream := &stream{rpc: rpc, responder: newResponder(s, sessions, caller, sender)}

	// Only a return from this handler ends the stream, and a goroutine that blocks in RecvMsg
	// cannot return. So another goroutine receives. It ends after this handler has returned,
	// because gRPC then cancels the stream.
	done := make(chan outcome, 1)
	go stream.run(done)
	for {
		select {
		case outcome := <-done:
			outcome.repanic()
			if errors.Is(outcome.err, sessioncontroller.ErrStopped) {
				return stream.end(outcome.err)
			}
			return s.statusOf(outcome.err)
		case <-lost:
			return stream.end(sessioncontroller.ErrStopped)
		case <-sessions.Done():
			return stream.end(sessioncontroller.ErrStopped)
		case <-rpc.Context().Done():
			return stream.end(context.Cause(rpc.Context()))
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
	err   error
	panic any
	stack []byte
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
	done <- outcome{err: s.serve()}
}

func (s *stream) serve() error {
	r := s.responder
	for {
		if err := s.rpc.RecvMsg(&r.request); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := r.respond(s.rpc.Context(), &r.request); err != nil {
			return err
		}
		if sent, err := s.send(&r.response); err != nil || !sent {
			return err
		}
		if r.superseded && r.live == 0 {
			return sessioncontroller.ErrSuperseded
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
