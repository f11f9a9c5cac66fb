package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// Reasons of this service beside the common ones.
const (
	// APIServerUnreachable: the kube-apiserver did not answer.
	APIServerUnreachable rpcerror.Reason = "APISERVER_UNREACHABLE"
	// EtcdUnreachable: etcd did not answer.
	EtcdUnreachable rpcerror.Reason = "ETCD_UNREACHABLE"
	// Conflict: an object changed between read and write. Earlier writes are kept.
	Conflict rpcerror.Reason = "CONFLICT"
)

// retryAfter is how long a caller should wait for a dependency to recover.
const retryAfter = time.Second

const conflictMessage = "an object changed between read and write; earlier writes are kept; call again"

// statusOf is the one table from errors to statuses. ctx is that of the call: once it has ended,
// its own error counts. An error that is not in the table becomes INTERNAL, and its text stays in
// the log.
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
	default:
		return err
	}
}
