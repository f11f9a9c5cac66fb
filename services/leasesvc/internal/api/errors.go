package api

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/resumetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Reasons of this API, in addition to those of package rpcerror.
const (
	reasonUnknownClass            rpcerror.Reason = "UNKNOWN_CLASS"
	reasonSuperseded              rpcerror.Reason = "SUPERSEDED"
	reasonTooManyHolders          rpcerror.Reason = "TOO_MANY_HOLDERS"
	reasonUnknownHandle           rpcerror.Reason = "UNKNOWN_HANDLE"
	reasonSequence                rpcerror.Reason = "SEQUENCE_NOT_INCREASING"
	reasonRegistrationRequired    rpcerror.Reason = "REGISTRATION_REQUIRED"
	reasonLeaseNotFound           rpcerror.Reason = "LEASE_NOT_FOUND"
	reasonDeleteFailed            rpcerror.Reason = "LEASE_NOT_DELETED"
	reasonRegistrationRateLimited rpcerror.Reason = "REGISTRATION_RATE_LIMITED"
	reasonTooManyMessages         rpcerror.Reason = "TOO_MANY_MESSAGES"
	reasonTooManyInFlight         rpcerror.Reason = "TOO_MANY_CALLS_IN_FLIGHT"
)

// Errors of the handlers themselves.

func errLeaseNotFound(name string) error {
	return rpcerror.New(codes.NotFound, reasonLeaseNotFound, fmt.Sprintf("there is no lease %q", name))
}

func errUnknownClass(name string) error {
	return rpcerror.New(codes.InvalidArgument, reasonUnknownClass, unknownClassMessage(name))
}

func unknownClassMessage(name string) string { return fmt.Sprintf("class %q is not served here", name) }

func errNotDeleted(cause error) error {
	return rpcerror.New(codes.Unavailable, reasonDeleteFailed,
		fmt.Sprintf("the Lease object was not deleted, so the lease remains; try again: %v", cause))
}

func errSequence(got, last uint64) error {
	return rpcerror.New(codes.InvalidArgument, reasonSequence, fmt.Sprintf("sequence %d is not greater than the last one, %d", got, last))
}

func errHandle(handle uint32) error {
	return rpcerror.New(codes.InvalidArgument, reasonUnknownHandle, fmt.Sprintf("handle %d was never assigned on this stream", handle))
}

func errRegistrationRequired() error {
	return rpcerror.New(codes.InvalidArgument, reasonRegistrationRequired, "the first message of a stream must register a holder")
}

func errStreamFull() error {
	return rpcerror.New(codes.ResourceExhausted, reasonTooManyHolders,
		fmt.Sprintf("more than %d registrations on one stream; open another one", maxHandles))
}

// statusOf is the table from errors of other packages to gRPC statuses. Context errors keep their
// codes; the interceptors turn all remaining errors into INTERNAL.
func (s *Server) statusOf(err error) error {
	var notHeld sessioncontroller.NotHeldError
	switch {
	case err == nil || rpcerror.ReasonOf(err) != "":
		return err
	case errors.Is(err, sessioncontroller.ErrStopped):
		return rpcerror.NotLeader(s.Service, s.Owners().Any())
	case errors.As(err, &notHeld):
		return rpcerror.NotLeader(s.Service, s.Owners().Address(notHeld.Shard))
	case errors.Is(err, sessioncontroller.ErrSuperseded):
		return rpcerror.New(codes.Aborted, reasonSuperseded, sessioncontroller.ErrSuperseded.Error())
	case errors.Is(err, sessioncontroller.ErrETagMismatch):
		return rpcerror.New(codes.Aborted, rpcerror.ETagMismatchReason, sessioncontroller.ErrETagMismatch.Error())
	case errors.Is(err, sessioncontroller.ErrNotFilled):
		return rpcerror.New(codes.Unavailable, rpcerror.CacheNotSyncedReason, sessioncontroller.ErrNotFilled.Error())
	case errors.Is(err, sessioncontroller.ErrCompacted):
		return resumetoken.ErrExpired
	case errors.Is(err, sessioncontroller.ErrTooSlow):
		return rpcerror.New(codes.ResourceExhausted, rpcerror.WatchTooSlowReason,
			"the watch does not read as fast as leases end; watch again without resume_token")
	case errors.Is(err, pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	}
	return err
}
