package api

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Reasons of this API, in addition to those of package rpcerror.
const (
	reasonUnknownClass    rpcerror.Reason = "UNKNOWN_CLASS"
	reasonSuperseded      rpcerror.Reason = "SUPERSEDED"
	reasonTooManyHolders  rpcerror.Reason = "TOO_MANY_HOLDERS"
	reasonUnknownHandle   rpcerror.Reason = "UNKNOWN_HANDLE"
	reasonSequence        rpcerror.Reason = "SEQUENCE_NOT_INCREASING"
	reasonHolderExpected  rpcerror.Reason = "HOLDER_EXPECTED"
	reasonLeaseNotFound   rpcerror.Reason = "LEASE_NOT_FOUND"
	reasonSlowWatcher     rpcerror.Reason = "SLOW_WATCHER"
	reasonDeleteFailed    rpcerror.Reason = "LEASE_NOT_DELETED"
	reasonVersionTooOld   rpcerror.Reason = "VERSION_TOO_OLD"
	reasonPaced           rpcerror.Reason = "PACED"
	reasonTooManyMessages rpcerror.Reason = "TOO_MANY_MESSAGES"
)

var (
	errSlowWatcher    = errors.New("the watch does not read as fast as leases change; list again")
	errVersionTooOld  = errors.New("start_version is from another replica, another run of it or another parent, or too many leases were deleted since; watch again without it")
	errHolderExpected = errors.New("the first message of a stream must register a holder")
	errStreamFull     = fmt.Errorf("more than %d registrations on one stream; open another one", maxHandles)
)

// notFoundError means that a lease has no session.
type notFoundError struct{ name string }

func (e notFoundError) Error() string { return fmt.Sprintf("there is no session for %q", e.name) }

// notDeletedError means that the Lease object of a released holder could not be deleted.
type notDeletedError struct{ cause error }

func (e notDeletedError) Error() string {
	return fmt.Sprintf("the Lease object was not deleted, so the session remains; try again: %v", e.cause)
}

// sequenceError is a message out of order on a stream.
type sequenceError struct{ got, last uint64 }

func (e sequenceError) Error() string {
	return fmt.Sprintf("sequence %d is not greater than the last one, %d", e.got, e.last)
}

// handleError is a handle that the stream has not returned.
type handleError struct{ handle uint32 }

func (e handleError) Error() string {
	return fmt.Sprintf("handle %d does not exist on this stream", e.handle)
}

// statusOf is the table from errors to gRPC statuses. Context errors keep their codes; the
// interceptors turn all remaining errors into INTERNAL.
func (s *Server) statusOf(err error) error {
	var (
		notHeld    sessioncontroller.NotHeldError
		notFound   notFoundError
		notDeleted notDeletedError
		sequence   sequenceError
		handle     handleError
	)
	switch {
	case err == nil || rpcerror.ReasonOf(err) != "":
		return err
	case errors.Is(err, sessioncontroller.ErrStopped):
		return rpcerror.NotLeader(s.Service, s.Owners().Any())
	case errors.As(err, &notHeld):
		return rpcerror.NotLeader(s.Service, s.Owners().Address(notHeld.Shard))
	case errors.Is(err, sessioncontroller.ErrSuperseded):
		return rpcerror.New(codes.Aborted, reasonSuperseded, err.Error())
	case errors.Is(err, ErrPageToken):
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
	return err
}
