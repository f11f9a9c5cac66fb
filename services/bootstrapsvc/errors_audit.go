package bootstrapsvc

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/errorclass"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Reasons of the audit and its repairs.
const (
	// CacheNotSynced: what is allocated has not been read yet; the message says what is in the way.
	CacheNotSynced rpcerror.Reason = "CACHE_NOT_SYNCED"
	// FindingNotFound: no finding of that name stands.
	FindingNotFound rpcerror.Reason = "FINDING_NOT_FOUND"
	// InvalidRepairToken: it is not one that PlanRepair gave.
	InvalidRepairToken rpcerror.Reason = "INVALID_REPAIR_TOKEN"
	// RepairTokenExpired: the plan is too old to be trusted.
	RepairTokenExpired rpcerror.Reason = "REPAIR_TOKEN_EXPIRED"
	// RepairDrifted: what would be done now is not what was shown.
	RepairDrifted rpcerror.Reason = "REPAIR_DRIFTED"
	// RepairRunning: another repair has not ended.
	RepairRunning rpcerror.Reason = "REPAIR_RUNNING"
)

var errPageToken = errors.New("the page token does not come from a list with the same arguments; start again without one")

// auditStatusOf is the part of the table of errors that is about the audit; nil where the error is none of it. What a dependency
// did comes after what the audit says of it: a repair that waits for a dependency is not running twice.
func auditStatusOf(err error) error {
	switch {
	case errors.Is(err, errPageToken):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	case errors.Is(err, allocationcontroller.ErrNotSynced):
		return rpcerror.New(codes.Unavailable, CacheNotSynced, err.Error(), rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, allocationcontroller.ErrFindingNotFound):
		return rpcerror.New(codes.NotFound, FindingNotFound, err.Error())
	case errors.Is(err, repairstore.ErrInvalidToken):
		return rpcerror.New(codes.InvalidArgument, InvalidRepairToken, err.Error(), rpcerror.WithField("token", err.Error()))
	case errors.Is(err, allocationcontroller.ErrPlanExpired):
		return rpcerror.New(codes.FailedPrecondition, RepairTokenExpired, err.Error()+"; plan again")
	case errors.Is(err, allocationcontroller.ErrPlanDrifted):
		return rpcerror.New(codes.FailedPrecondition, RepairDrifted, err.Error()+"; plan again")
	case errors.Is(err, allocationcontroller.ErrRepairRunning):
		return rpcerror.New(codes.Aborted, RepairRunning, err.Error(), rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, rangestore.ErrUnavailable), errors.Is(err, repairstore.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, EtcdUnreachable,
			"etcd did not answer in time", rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, errorclass.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, APIServerUnreachable,
			"the kube-apiserver did not answer in time", rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, rangestore.ErrConflict), errors.Is(err, errorclass.ErrConflict), errors.Is(err, repairstore.ErrExists):
		return rpcerror.New(codes.Aborted, Conflict,
			"something changed between read and write; what was written before it stands; call again", rpcerror.WithRetryAfter(retryAfter))
	default:
		return nil
	}
}
