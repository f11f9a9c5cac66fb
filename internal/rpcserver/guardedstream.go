package rpcserver

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
)

// reauthorizePeriod is how often the right of a long stream is reviewed again.
const reauthorizePeriod = time.Minute

// guardedStream decides about each request of a stream. Its context ends with a denial as cause
// when the certificate of the caller ends, its token is revoked or its right is taken away. A
// review that fails changes nothing.
type guardedStream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelCauseFunc
	reader reader
	tasks  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	request wanted     // the last one that was allowed
	allowed bool       // whether there is one
}

func newGuardedStream(ctx context.Context, stream grpc.ServerStream, reader reader) *guardedStream {
	s := &guardedStream{ServerStream: stream, reader: reader}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.tasks.Go(func() {
		if err := reader.caller.Await(s.ctx); err != nil {
			s.lose(err)
		}
	})
	s.tasks.Go(s.reauthorize)
	return s
}

func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg returns requests that the caller may make.
func (s *guardedStream) RecvMsg(message any) error {
	asked, err := s.reader.read(s.ctx, s.ServerStream.RecvMsg, message)
	if err != nil {
		s.reader.chain.deny(s.reader.caller, s.reader.method, asked, err)
		return err
	}
	s.mu.Lock()
	s.request, s.allowed = asked, true
	s.mu.Unlock()
	return nil
}

// SendMsg sends nothing after the end, also if the handler does not watch its context.
func (s *guardedStream) SendMsg(message any) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(message)
}

// reauthorize reviews the right of the last request from time to time.
func (s *guardedStream) reauthorize() {
	ticker := time.NewTicker(authn.Jitter(reauthorizePeriod))
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		request, allowed := s.request, s.allowed
		s.mu.Unlock()
		if !allowed {
			continue
		}
		if err := s.reader.chain.authorizeRequest(s.ctx, s.reader.caller, s.reader.method, request); status.Code(err) == codes.PermissionDenied {
			s.lose(err)
			return
		}
	}
}

// lose ends the stream with a denial.
func (s *guardedStream) lose(denial error) {
	s.mu.Lock()
	request := s.request
	s.mu.Unlock()
	s.reader.chain.deny(s.reader.caller, s.reader.method, request, denial)
	s.cancel(denial)
}

// lost returns the denial that ended the stream, or nil.
func (s *guardedStream) lost() error {
	if err := context.Cause(s.ctx); isDenial(err) {
		return err
	}
	return nil
}

func isDenial(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// end returns after the reviews of the stream have.
func (s *guardedStream) end() {
	s.cancel(nil)
	s.tasks.Wait()
}
