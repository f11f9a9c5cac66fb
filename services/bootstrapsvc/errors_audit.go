package bootstrapsvc

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/auditor"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/inventory"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/journal"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairtoken"
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
	case errors.Is(err, auditor.ErrNotSynced):
		return rpcerror.New(codes.Unavailable, CacheNotSynced, err.Error(), rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, auditor.ErrFindingNotFound):
		return rpcerror.New(codes.NotFound, FindingNotFound, err.Error())
	case errors.Is(err, repairtoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, InvalidRepairToken, err.Error(), rpcerror.WithField("token", err.Error()))
	case errors.Is(err, auditor.ErrExpired):
		return rpcerror.New(codes.FailedPrecondition, RepairTokenExpired, err.Error()+"; plan again")
	case errors.Is(err, auditor.ErrDrifted):
		return rpcerror.New(codes.FailedPrecondition, RepairDrifted, err.Error()+"; plan again")
	case errors.Is(err, auditor.ErrRunning):
		return rpcerror.New(codes.Aborted, RepairRunning, err.Error(), rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, rangestore.ErrUnavailable), errors.Is(err, journal.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, EtcdUnreachable,
			"etcd did not answer in time", rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, inventory.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, APIServerUnreachable,
			"the kube-apiserver did not answer in time", rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, rangestore.ErrConflict), errors.Is(err, inventory.ErrConflict), errors.Is(err, journal.ErrExists):
		return rpcerror.New(codes.Aborted, Conflict,
			"something changed between read and write; what was written before it stands; call again", rpcerror.WithRetryAfter(retryAfter))
	default:
		return nil
	}
}
