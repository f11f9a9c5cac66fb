package nodeapi

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Reasons of this API, in addition to those of package rpcerror.
const (
	reasonLoopDisabled rpcerror.Reason = "LOOP_DISABLED"
	reasonNodeNotFound rpcerror.Reason = "NODE_NOT_FOUND"
	reasonZoneNotFound rpcerror.Reason = "ZONE_NOT_FOUND"
)

// notSyncedRetryAfter is when to ask a replica again that has not listed all Nodes.
const notSyncedRetryAfter = time.Second

var (
	errLoopDisabled = errors.New("the loop does not run on this replica")
	errNotSynced    = errors.New("this replica has not assessed all Nodes yet; ask again in a second")
)

// notFoundError is a Node or zone that does not exist.
type notFoundError struct {
	reason rpcerror.Reason
	name   string
}

func (e notFoundError) Error() string { return fmt.Sprintf("%s does not exist", e.name) }

// statusOf is the table from errors to gRPC statuses. Errors that have a reason stay as they are.
func (s *Server) statusOf(err error) error {
	var (
		notHeld  sessioncontroller.NotHeldError
		notFound notFoundError
	)
	switch {
	case errors.Is(err, errLoopDisabled):
		return rpcerror.New(codes.FailedPrecondition, reasonLoopDisabled,
			fmt.Sprintf("the loop %s does not run on this replica; name it in --loops of every replica", s.Loop))
	case errors.Is(err, errNotSynced):
		return rpcerror.New(codes.Unavailable, rpcerror.CacheNotSyncedReason, err.Error(), rpcerror.WithRetryAfter(notSyncedRetryAfter))
	case errors.As(err, &notHeld):
		return rpcerror.NotLeader(s.Service, s.Owners().Address(notHeld.Shard))
	case errors.As(err, &notFound):
		return rpcerror.New(codes.NotFound, notFound.reason, err.Error(), rpcerror.WithMetadata("name", notFound.name))
	case errors.Is(err, pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	}
	return err
}
