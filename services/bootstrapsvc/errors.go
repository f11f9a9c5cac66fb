package bootstrapsvc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// Reasons of this service beside the common ones.
const (
	// APIServerUnreachable: the kube-apiserver did not answer.
	APIServerUnreachable rpcerror.Reason = "APISERVER_UNREACHABLE"
	// EtcdUnreachable: etcd did not answer.
	EtcdUnreachable rpcerror.Reason = "ETCD_UNREACHABLE"
	// Conflict: an object changed between read and write; what was written before it stands.
	Conflict rpcerror.Reason = "CONFLICT"
)

// retryAfter is how long a caller should wait for a dependency to come back.
const retryAfter = time.Second

// statusOf is the one table from errors to statuses. ctx is the call's own: when that has ended, nothing else matters.
// What is not in the table becomes INTERNAL, and its text stays in the log.
func (s *Service) statusOf(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, errStopping):
		return rpcerror.ShuttingDown()
	case errors.Is(err, errNotLeading), errors.Is(err, term.ErrEnded), errors.Is(err, term.ErrNone):
		return rpcerror.NotLeader(s.member.Service, s.holder().GRPCAddress)
	case errors.Is(err, baselinecontroller.ErrConflict):
		return rpcerror.New(codes.Aborted, Conflict,
			"an object changed between read and write; what was written before it stands; call again",
			rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, apiserverscontroller.ErrUnavailable), errors.Is(err, apiserverscontroller.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, EtcdUnreachable,
			"etcd did not answer in time", rpcerror.WithRetryAfter(retryAfter))
	case errors.Is(err, baselinecontroller.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, APIServerUnreachable,
			"the kube-apiserver did not answer in time", rpcerror.WithRetryAfter(retryAfter))
	default:
		return cmp.Or(auditStatusOf(err), err)
	}
}
