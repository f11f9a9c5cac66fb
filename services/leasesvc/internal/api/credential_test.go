package api

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const reauth = leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH

// openStream is a stream without a connection: the test sends requests and reads responses.
type openStream struct {
	heartbeatStream
	t         *testing.T
	ctx       context.Context
	requests  chan *leasev1.StreamHeartbeatsRequest
	responses chan *leasev1.StreamHeartbeatsResponse
	ended     chan error
	sequence  uint64
}

// openStreamAs calls the handler of streams until the test ends.
func (f *fixture) openStreamAs(t *testing.T, caller *authn.Caller) *openStream {
	begun, err := f.begin(t, caller, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(begun)
	s := &openStream{
		t: t, ctx: ctx, requests: make(chan *leasev1.StreamHeartbeatsRequest), responses: make(chan *leasev1.StreamHeartbeatsResponse), ended: make(chan error, 1),
	}
	go func() {
		s.ended <- f.server.StreamHeartbeats(s)
		cancel() // as gRPC does
	}()
	t.Cleanup(cancel)
	return s
}

func (s *openStream) Context() context.Context { return s.ctx }

func (s *openStream) RecvMsg(into any) error {
	select {
	case request := <-s.requests:
		proto.Merge(into.(proto.Message), request)
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *openStream) Send(response *leasev1.StreamHeartbeatsResponse) error {
	return s.SendMsg(response)
}

func (s *openStream) SendMsg(message any) error {
	select {
	case s.responses <- proto.Clone(message.(proto.Message)).(*leasev1.StreamHeartbeatsResponse):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *openStream) send(request *leasev1.StreamHeartbeatsRequest) *leasev1.StreamHeartbeatsResponse {
	s.t.Helper()
	s.sequence++
	request.Sequence = s.sequence
	select {
	case s.requests <- request:
		return <-s.responses
	case err := <-s.ended:
		s.t.Fatalf("the stream has ended: %v", err)
		return nil
	}
}

func (s *openStream) register(h ...*leasev1.Holder) *leasev1.StreamHeartbeatsResponse {
	return s.send(&leasev1.StreamHeartbeatsRequest{Registrations: registrations(h)})
}

func (s *openStream) beat() *leasev1.StreamHeartbeatsResponse {
	return s.send(&leasev1.StreamHeartbeatsRequest{Handles: []uint32{1}})
}

func (s *openStream) expectReauth() {
	s.t.Helper()
	if got := s.beat(); got.Directive != reauth || got.Grant == nil {
		s.t.Errorf("response %v, want a grant and REAUTH", got)
	}
	rejection := s.register(holders(0, 1)...).RegistrationResults[0].GetRejection()
	if rejection.GetReason() != "NOT_AUTHENTICATED" || codes.Code(rejection.GetCode()) != codes.Unauthenticated {
		s.t.Errorf("a registration with an ended credential: %v, want NOT_AUTHENTICATED", rejection)
	}
}

func (s *openStream) expectEnd(after time.Duration, text string) {
	s.t.Helper()
	begin := time.Now()
	err := <-s.ended
	if status.Code(err) != codes.Unauthenticated || rpcerror.ReasonOf(err) != "NOT_AUTHENTICATED" || !strings.Contains(err.Error(), text) {
		s.t.Errorf("the stream ended with %v, want NOT_AUTHENTICATED because %s", err, text)
	}
	if took := time.Since(begin); took > after {
		s.t.Errorf("the stream ended after %v, want %v", took, after)
	}
}

func TestStreamHeartbeats_EndsAfterTheEndOfItsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{})
		caller := node("node-0")
		caller.Expires = time.Now().Add(time.Minute)
		s := f.openStreamAs(t, caller)
		if got := s.register(holders(0, 1)...); got.Directive != 0 || got.RegistrationResults[0].Handle != 1 {
			t.Fatalf("registered: %v", got)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if got := s.beat().Directive; got != 0 {
			t.Errorf("told %v before the end", got)
		}
		time.Sleep(time.Second)
		s.expectReauth()
		s.expectEnd(minReauthTime, "the client certificate has expired")
	})
}

// RFC 5280 certificates without an expiry have the last second of the year 9999.
func TestStreamHeartbeats_ACertificateWithoutEndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{})
		caller := node("node-0")
		caller.Expires = time.Now().Add(100 * 365 * 24 * time.Hour)
		s := f.openStreamAs(t, caller)
		s.register(holders(0, 1)...)
		time.Sleep(5 * time.Minute)
		if got := s.register(holders(0, 1)...); got.Directive != 0 || got.RegistrationResults[0].Handle == 0 {
			t.Errorf("minutes later: %v", got)
		}
	})
}

func TestStreamHeartbeats_ARevokedTokenIsNoticedWithinTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{agents: []string{agentAccount}})
		var answer atomic.Pointer[error]
		var reviews atomic.Int64
		caller := token(agentAccount, "node-0")
		caller.Recheck = func(context.Context) error {
			reviews.Add(1)
			if err := answer.Load(); err != nil {
				return *err
			}
			return nil
		}
		s := f.openStreamAs(t, caller)
		s.register(holders(0, 1)...)
		beats := func(d time.Duration) {
			t.Helper()
			for range d / (5 * time.Second) {
				time.Sleep(5 * time.Second)
				if got := s.beat(); got.Directive != 0 || got.Grant == nil {
					t.Fatalf("told %v", got)
				}
			}
		}
		beats(time.Minute)
		if n := reviews.Load(); n < 6 || n > 12 {
			t.Errorf("%d reviews in a minute, want one each 5 to 10 s", n)
		}
		// An outage of kube-apiserver ends nothing.
		down := status.Error(codes.Unavailable, "connection refused")
		answer.Store(&down)
		beats(5 * time.Minute)
		broken := errors.New("broken")
		answer.Store(&broken)
		beats(time.Minute)
		revoked := authn.NotAuthenticated("the ServiceAccount is gone")
		answer.Store(&revoked)
		time.Sleep(10*time.Second + time.Millisecond)
		s.expectReauth()
		s.expectEnd(minReauthTime, "the ServiceAccount is gone")
		n := reviews.Load()
		time.Sleep(time.Minute)
		if reviews.Load() != n {
			t.Error("the token of an ended stream is reviewed")
		}
	})
}

// A review that hangs delays nothing on its stream, and ends with its time.
func TestStreamHeartbeats_AReviewThatHangsDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, setup{agents: []string{agentAccount}})
		var running, reviews atomic.Int64
		caller := token(agentAccount, "node-0")
		caller.Recheck = func(ctx context.Context) error {
			reviews.Add(1)
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}
		s := f.openStreamAs(t, caller)
		s.register(holders(0, 1)...)
		for range 24 {
			time.Sleep(5 * time.Second)
			begin := time.Now()
			if got := s.beat(); got.Directive != 0 || got.Grant == nil || time.Since(begin) > time.Second {
				t.Fatalf("told %v after %v", got, time.Since(begin))
			}
			if running.Load() > 1 {
				t.Fatal("two reviews of one token at once")
			}
		}
		if n := reviews.Load(); n < 5 {
			t.Errorf("%d reviews in two minutes: a hanging one ends no later than the next is due", n)
		}
	})
}
