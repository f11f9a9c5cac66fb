package leasesvc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Reasons of this service, beside those that all services share.
const (
	reasonUnknownClass   rpcerror.Reason = "UNKNOWN_CLASS"
	reasonSuperseded     rpcerror.Reason = "SUPERSEDED"
	reasonTooManyHolders rpcerror.Reason = "TOO_MANY_HOLDERS"
	reasonUnknownHandle  rpcerror.Reason = "UNKNOWN_HANDLE"
	reasonSequence       rpcerror.Reason = "SEQUENCE_NOT_INCREASING"
	reasonHolderExpected rpcerror.Reason = "HOLDER_EXPECTED"
	reasonLeaseNotFound  rpcerror.Reason = "LEASE_NOT_FOUND"
	reasonSlowWatcher    rpcerror.Reason = "SLOW_WATCHER"
	reasonDeleteFailed   rpcerror.Reason = "LEASE_NOT_DELETED"
	reasonVersionTooOld  rpcerror.Reason = "VERSION_TOO_OLD"
	reasonPaced          rpcerror.Reason = "PACED"

	reasonTooManyMessages rpcerror.Reason = "TOO_MANY_MESSAGES"
)

// What the RPCs can fail with beside the errors of package keeper.
var (
	errPageToken      = errors.New("page_token is not from a list with the same arguments; list again without it")
	errSlowWatcher    = errors.New("the reader is too slow for the changes; list again")
	errVersionTooOld  = errors.New("start_version is not of this life of this replica and this parent, or too much was deleted since; watch again without it")
	errHolderExpected = errors.New("the first message of a stream must introduce a holder")
	errStreamFull     = fmt.Errorf("more than %d introductions on one stream; open another one", maxHandles)
)

// notFoundError is a lease that does not exist.
type notFoundError struct{ name string }

func (e notFoundError) Error() string {
	return fmt.Sprintf("no holder beats for %q", e.name)
}

// notDeletedError is a Lease object that outlived its release.
type notDeletedError struct{ cause error }

func (e notDeletedError) Error() string {
	return fmt.Sprintf("the Lease object was not deleted, so the session goes on; try again: %v", e.cause)
}

// sequenceError is a message out of order on a stream.
type sequenceError struct{ got, last uint64 }

func (e sequenceError) Error() string {
	return fmt.Sprintf("sequence %d does not follow %d", e.got, e.last)
}

// handleError is a handle that the stream never gave out.
type handleError struct{ handle uint32 }

func (e handleError) Error() string {
	return fmt.Sprintf("handle %d was never given out on this stream", e.handle)
}

// problem is the one table from what went wrong to what the caller is told.
func (s *server) problem(err error) error {
	var (
		elsewhere  sessioncontroller.NotHeldError
		notFound   notFoundError
		notDeleted notDeletedError
		sequence   sequenceError
		handle     handleError
	)
	switch {
	case err == nil || rpcerror.ReasonOf(err) != "":
		return err
	case errors.Is(err, sessioncontroller.ErrStopped):
		return rpcerror.NotLeader(ServiceName, s.shards().someoneElse())
	case errors.As(err, &elsewhere):
		return rpcerror.NotLeader(ServiceName, s.shards().owner(elsewhere.Shard))
	case errors.Is(err, sessioncontroller.ErrSuperseded):
		return rpcerror.New(codes.Aborted, reasonSuperseded, err.Error())
	case errors.Is(err, errPageToken):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	case errors.Is(err, errVersionTooOld):
		return rpcerror.New(codes.OutOfRange, reasonVersionTooOld, err.Error())
	case errors.Is(err, errSlowWatcher):
		return rpcerror.New(codes.ResourceExhausted, reasonSlowWatcher, err.Error())
	case errors.Is(err, errHolderExpected):
		return rpcerror.New(codes.InvalidArgument, reasonHolderExpected, err.Error())
	case errors.Is(err, errStreamFull):
		return rpcerror.New(codes.ResourceExhausted, reasonTooManyHolders, err.Error())
	case errors.As(err, &notFound):
		return rpcerror.New(codes.NotFound, reasonLeaseNotFound, err.Error())
	case errors.As(err, &notDeleted):
		return rpcerror.New(codes.Unavailable, reasonDeleteFailed, err.Error())
	case errors.As(err, &sequence):
		return rpcerror.New(codes.InvalidArgument, reasonSequence, err.Error())
	case errors.As(err, &handle):
		return rpcerror.New(codes.InvalidArgument, reasonUnknownHandle, err.Error())
	}
	return err // contexts keep their codes, the rest becomes INTERNAL in the chain
}

// endOf tells why a call's context ended: with the server, or with the caller.
func endOf(ctx context.Context) error {
	if cause := context.Cause(ctx); rpcerror.ReasonOf(cause) != "" {
		return cause
	}
	return ctx.Err()
}

// refusal tells a holder why it was not accepted; nil when it was.
func refusal(outcome session.Outcome) *leasev1.Refusal {
	switch outcome {
	case session.Superseded:
		return &leasev1.Refusal{Reason: string(reasonSuperseded), Message: sessioncontroller.ErrSuperseded.Error()}
	case session.Full:
		return &leasev1.Refusal{
			Reason: string(reasonTooManyHolders), Message: "no room for further holders", RetryAfter: duration(fullPause),
		}
	case session.Unknown:
		return &leasev1.Refusal{Reason: string(reasonUnknownHandle), Message: "the session of this handle is gone; introduce the holder again"}
	}
	return nil
}

// moved is the refusal of a holder whose shard is not kept here.
func moved(number int, all shards) *leasev1.Refusal {
	return &leasev1.Refusal{
		Reason: string(rpcerror.NotLeaderReason), Message: sessioncontroller.NotHeldError{Shard: number}.Error(), MoveTo: all.owner(number),
	}
}

// paced asks a holder to come again when it is its turn.
func paced(pause time.Duration) *leasev1.Refusal {
	return &leasev1.Refusal{
		Reason: string(reasonPaced), Message: "many holders come at once; nothing is held against this one until its turn", RetryAfter: duration(pause),
	}
}

func unknownClass(class string) *leasev1.Refusal {
	return &leasev1.Refusal{Reason: string(reasonUnknownClass), Message: fmt.Sprintf("class %q is not served here", class)}
}
