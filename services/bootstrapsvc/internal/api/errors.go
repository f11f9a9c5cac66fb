package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Reasons of this service beside the common ones.
const (
	// APIServerUnreachable: the kube-apiserver did not answer.
	APIServerUnreachable rpcerror.Reason = "APISERVER_UNREACHABLE"
	// EtcdUnreachable: etcd did not answer.
	EtcdUnreachable rpcerror.Reason = "ETCD_UNREACHABLE"
	// Conflict: an object changed between read and write. Earlier writes are kept.
	Conflict rpcerror.Reason = "CONFLICT"
	// CacheNotSynced: the allocations have not been read yet; the message says why.
	CacheNotSynced rpcerror.Reason = "CACHE_NOT_SYNCED"
	// FindingNotFound: no open finding has this name.
	FindingNotFound rpcerror.Reason = "FINDING_NOT_FOUND"
	// InvalidRepairToken: the token was not made by PlanRepair.
	InvalidRepairToken rpcerror.Reason = "INVALID_REPAIR_TOKEN"
	// RepairTokenExpired: the plan of the token is too old.
	RepairTokenExpired rpcerror.Reason = "REPAIR_TOKEN_EXPIRED"
	// RepairDrifted: the plan would differ now from the one that was shown.
	RepairDrifted rpcerror.Reason = "REPAIR_DRIFTED"
	// RepairRunning: another repair has not ended.
	RepairRunning rpcerror.Reason = "REPAIR_RUNNING"
)

// retryAfter is how long a caller should wait for a dependency to recover.
const retryAfter = time.Second

const conflictMessage = "an object changed between read and write; earlier writes are kept; call again"

// statusOf is the one table from errors to statuses. ctx is that of the call: once it has ended,
// its own error counts. An error that is not in the table becomes INTERNAL, and its text stays in
// the log.
//
// An error may wrap several of the targets, so the order matters: errors of kube-apiserver come
// before those of repairs, and these before errors of the repairs' stores in etcd.
func (s *Server) statusOf(ctx context.Context, err error) error {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	retry := rpcerror.WithRetryAfter(retryAfter)
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case is(errStopping):
		return rpcerror.ShuttingDown()
	case is(errNotLeading, term.ErrEnded, term.ErrNone):
		return rpcerror.NotLeader(s.Service, s.Leadership.LeaderAddress())
	case is(guarded.ErrConflict):
		return rpcerror.New(codes.Aborted, Conflict, conflictMessage, retry)
	case is(apiserverscontroller.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, EtcdUnreachable, "etcd did not answer in time", retry)
	case is(guarded.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, APIServerUnreachable, "the kube-apiserver did not answer in time", retry)
	case is(pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	case is(allocationcontroller.ErrNotSynced):
		return rpcerror.New(codes.Unavailable, CacheNotSynced, err.Error(), retry)
	case is(allocationcontroller.ErrFindingNotFound):
		return rpcerror.New(codes.NotFound, FindingNotFound, err.Error())
	case is(repairstore.ErrInvalidToken):
		return rpcerror.New(codes.InvalidArgument, InvalidRepairToken, err.Error(), rpcerror.WithField("token", err.Error()))
	case is(allocationcontroller.ErrPlanExpired):
		return rpcerror.New(codes.FailedPrecondition, RepairTokenExpired, err.Error()+"; plan again")
	case is(allocationcontroller.ErrPlanDrifted):
		return rpcerror.New(codes.FailedPrecondition, RepairDrifted, err.Error()+"; plan again")
	case is(allocationcontroller.ErrRepairRunning):
		return rpcerror.New(codes.Aborted, RepairRunning, err.Error(), retry)
	case is(rangestore.ErrUnavailable, repairstore.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, EtcdUnreachable, "etcd did not answer in time", retry)
	case is(rangestore.ErrConflict, repairstore.ErrExists):
		return rpcerror.New(codes.Aborted, Conflict, conflictMessage, retry)
	default:
		return err
	}
}
