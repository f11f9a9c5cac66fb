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
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// APIServerNotFound says that no kube-apiserver with this address is known.
const APIServerNotFound rpcerror.Reason = "APISERVER_NOT_FOUND"

// EtcdDenied says that the role of this replica's etcd user lacks a right.
const EtcdDenied rpcerror.Reason = "ETCD_DENIED"

// retryAfter is how long a caller should wait for a dependency to recover.
const retryAfter = time.Second

// statusOf is the one table from errors of the baseline and of kube-apiservers to statuses. ctx is
// that of the call: once it has ended, its own error counts. An error that is not in the table
// stays as it is; unless it is a status, it becomes INTERNAL, and its text stays in the log.
//
// An error may wrap several of the targets, so the order matters.
func (r replica) statusOf(ctx context.Context, err error) error {
	is := func(target error) bool { return errors.Is(err, target) }
	retry := rpcerror.WithRetryAfter(retryAfter)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case is(errStopping):
		return rpcerror.ShuttingDown()
	case is(errNotLeading), is(term.ErrEnded), is(term.ErrNone):
		return rpcerror.NotLeader(r.Service, r.Leadership.LeaderAddress())
	case is(baselinecontroller.ErrDrifted):
		return rpcerror.New(codes.Aborted, rpcerror.ETagMismatchReason,
			"the plan is not the one that was read, and nothing was written; read the baseline again", rpcerror.WithField("etag", "is that of another plan"))
	case is(guarded.ErrConflict):
		return rpcerror.New(codes.Aborted, rpcerror.ConflictReason,
			"an object changed between read and write; earlier writes are kept; call again", retry)
	case is(guarded.ErrEtcdDenied):
		return rpcerror.New(codes.FailedPrecondition, EtcdDenied, wording.Valid(err.Error()))
	case is(apiserverscontroller.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, rpcerror.EtcdUnreachableReason, "etcd did not answer in time", retry)
	case is(guarded.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, rpcerror.APIServerUnreachableReason, "the kube-apiserver did not answer in time", retry)
	case is(pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	default:
		return err
	}
}
