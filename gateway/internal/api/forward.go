package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// onBehalf returns the context of calls to services for the caller of ctx: each service decides
// about that caller itself. Watches and the status are shared, and the gateway asks for them by its
// own identity; its server has decided about each of their readers.
//
// A peer of the gateway that calls for itself is not named: peers may read without a right, by
// their certificate, and so may the gateway.
func onBehalf(ctx context.Context, replicaID string) context.Context {
	caller := authn.FromContext(ctx)
	if caller.Unchecked || caller.IsPeer(authn.Gateway, authn.Server) {
		return ctx
	}
	return authn.ForwardFrom(ctx, replicaID, caller.User)
}

// isRefusal reports whether a service has refused the caller of a call.
func isRefusal(err error) bool {
	return status.Code(err) == codes.PermissionDenied && rpcerror.ReasonOf(err) == rpcerror.NotAuthorizedReason
}

// refusalIn returns the first refusal of failures, or nil.
func refusalIn(failures []fanout.Failure) error {
	for _, failure := range failures {
		if isRefusal(failure.Err) {
			return failure.Err
		}
	}
	return nil
}

// distrustError means that a replica does not accept the credentials of the gateway. The caller of
// the gateway cannot change that, so that the replica counts as one that does not answer. The
// replica has done nothing.
type distrustError struct{ err error }

func (e distrustError) Error() string {
	return fmt.Sprintf("it does not accept the credentials of the gateway: %s", status.Convert(e.err).Message())
}

// GRPCStatus returns the error as one without an ErrorInfo.
func (e distrustError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// distrusted converts the error of a call to a replica.
func distrusted(err error) error {
	if status.Code(err) == codes.Unauthenticated {
		return distrustError{err: err}
	}
	return err
}
