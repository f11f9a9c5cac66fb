package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// sender opens streams with a number of holders of a class each. A replica that has lost its shards
// ends a stream. That also happens when the machine is too busy to renew the replica's term. Such a
// stream is reopened and counted.
type sender struct {
	class   string
	holders int
	anew    atomic.Int64
}

func (f *sender) open(ctx context.Context, connection *grpc.ClientConn, name string) (func() error, error) {
	holders := holdersNamed(f.class, name, f.holders)
	s, err := openStream(ctx, connection, holders)
	if err != nil {
		return nil, err
	}
	return func() error {
		err := s.beat()
		if !isShardLost(err) {
			return err
		}
		f.anew.Add(1)
		s.cancel()
		if s, err = openStream(ctx, connection, holders); err != nil {
			return fmt.Errorf("open a stream anew: %w", err)
		}
		return nil
	}, nil
}

// isShardLost reports whether a heartbeat failed because the replica no longer has the holder's
// shard.
func isShardLost(err error) bool {
	var rejected rejectedError
	return status.Code(err) == codes.Unavailable ||
		errors.As(err, &rejected) && (rejected.first.Reason == "NOT_LEADER" || rejected.first.Reason == "NO_LEADER" || rejected.first.Reason == "LEASE_NOT_FOUND")
}

// rejectedError reports handles that were not renewed.
type rejectedError struct {
	count, of int
	first     *leasev1.Rejection
}

func (e rejectedError) Error() string {
	return fmt.Sprintf("%d of %d handles are rejected, the first: %v", e.count, e.of, e.first)
}

func holdersNamed(class, name string, count int) []*leasev1.Holder {
	all := make([]*leasev1.Holder, count)
	for i := range all {
		all[i] = &leasev1.Holder{Class: class, Name: fmt.Sprintf("%s-%d", name, i), BootId: "boot"}
	}
	return all
}

func registrations(holders []*leasev1.Holder) []*leasev1.Registration {
	all := make([]*leasev1.Registration, len(holders))
	for i, h := range holders {
		all[i] = &leasev1.Registration{Holder: h}
	}
	return all
}

// stream is one open stream of heartbeats. It is not safe for concurrent use.
type stream struct {
	cancel  context.CancelFunc
	wire    grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]
	request leasev1.StreamHeartbeatsRequest
	answer  leasev1.StreamHeartbeatsResponse
}

// registrationsPerMessage is the number of holders that one message registers.
const registrationsPerMessage = 1000

// retryTimeout bounds the retries of a registration.
const retryTimeout = time.Minute

// openStream registers holders. It retries while the replica is unavailable or asks for a retry.
func openStream(ctx context.Context, connection grpc.ClientConnInterface, holders []*leasev1.Holder) (*stream, error) {
	for end := time.Now().Add(retryTimeout); ; {
		s, err := tryStream(ctx, connection, holders)
		mayRetry := status.Code(err) == codes.Unavailable || rpcerror.ReasonOf(err) == rpcerror.NotLeaderReason
		if !mayRetry || !sleepUntil(ctx, time.Now().Add(retryAfter(err)), end) {
			return s, err
		}
	}
}

func tryStream(ctx context.Context, connection grpc.ClientConnInterface, holders []*leasev1.Holder) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	wire, err := leasev1.NewHeartbeatServiceClient(connection).StreamHeartbeats(ctx, grpc.WaitForReady(true))
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{cancel: cancel, wire: wire}
	if err := s.registerAll(ctx, holders); err != nil {
		cancel()
		return nil, err
	}
	return s, nil
}

// registerAll registers holders, in messages of the largest allowed size.
func (s *stream) registerAll(ctx context.Context, holders []*leasev1.Holder) error {
	for some := range slices.Chunk(holders, registrationsPerMessage) {
		if err := s.register(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// register sends one message that registers holders, and another one for the holders that are asked
// to retry.
func (s *stream) register(ctx context.Context, holders []*leasev1.Holder) error {
	for end := time.Now().Add(retryTimeout); len(holders) > 0; {
		s.request.Sequence++
		answer, err := s.exchange(&leasev1.StreamHeartbeatsRequest{Sequence: s.request.Sequence, Registrations: registrations(holders)})
		if err != nil {
			return err
		}
		var delayed []*leasev1.Holder
		var wait time.Duration
		for i, result := range answer.RegistrationResults {
			rejection := result.GetRejection()
			switch {
			case rejection == nil:
				s.request.Handles = append(s.request.Handles, result.Handle)
			case rejection.RetryAfter != nil || rejection.Reason == "NOT_LEADER":
				delayed = append(delayed, holders[i])
				wait = max(wait, rejection.RetryAfter.AsDuration(), shortPause)
			default:
				return fmt.Errorf("holder %s is not registered: %v", holders[i].Name, rejection)
			}
		}
		if holders = delayed; len(holders) > 0 && !sleepUntil(ctx, time.Now().Add(wait), end) {
			return fmt.Errorf("%d holders were asked to come again for %v", len(holders), retryTimeout)
		}
	}
	return nil
}

// beat sends the handles of all holders and waits for the answer.
func (s *stream) beat() error {
	s.request.Sequence++
	answer, err := s.exchange(&s.request)
	if err != nil {
		return err
	}
	if rejected := answer.RejectedHandles; len(rejected) > 0 {
		return rejectedError{count: len(rejected), of: len(s.request.Handles), first: rejected[0].Rejection}
	}
	return nil
}

// exchange returns an answer that the next exchange overwrites.
func (s *stream) exchange(request *leasev1.StreamHeartbeatsRequest) (*leasev1.StreamHeartbeatsResponse, error) {
	if err := s.wire.Send(request); err != nil {
		// RecvMsg returns the stream's error after the pending answers.
		for err = s.wire.RecvMsg(&s.answer); err == nil; {
			err = s.wire.RecvMsg(&s.answer)
		}
		return nil, err
	}
	if err := s.wire.RecvMsg(&s.answer); err != nil {
		return nil, err
	}
	return &s.answer, nil
}

// shortPause is the pause before a retry if the error has none.
const shortPause = 50 * time.Millisecond

// retryAfter returns the pause that an error asks for.
func retryAfter(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return retry.RetryDelay.AsDuration()
		}
	}
	return shortPause
}
