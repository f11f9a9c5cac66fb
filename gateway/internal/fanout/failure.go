package fanout

import (
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/wording"
)

// Failure is a call or a stream to a replica that failed.
type Failure struct {
	Member term.Member
	Err    error
	// After is how long the call or the stream lasted.
	After time.Duration
}

// Part returns the failure as an answer names it.
func (f Failure) Part() merge.Failure {
	return merge.Failure{Service: f.Member.Service, ReplicaID: f.Member.ID, Code: code.Code(status.Code(f.Err)), Message: messageOf(f.Err, f.After)}
}

// Parts returns failures as an answer names them.
func Parts(failures []Failure) []merge.Failure {
	var parts []merge.Failure
	for _, failure := range failures {
		parts = append(parts, failure.Part())
	}
	return parts
}

// Text returns the failure for an error message, with the cause cut to limit bytes.
func (f Failure) Text(limit int) string {
	cause := wording.Clip(messageOf(f.Err, f.After), limit)
	return fmt.Sprintf("%s %s at %s: %s: %s", f.Member.Service, f.Member.ID, f.Member.GRPCAddress, codeName(f.Err), cause)
}

// LostError means that a replica received a call and its answer did not arrive, so that it is not
// known whether the call was carried out.
type LostError struct{ Err error }

func (e LostError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the call.
func (e LostError) Unwrap() error { return e.Err }

// ForeignAnswer returns the error for an answer of another replica than the one that was asked.
func ForeignAnswer(member term.Member, service, replicaID string) error {
	return status.Errorf(codes.Unavailable, "%s answered as %s %q: the replica that was asked is gone and its address belongs to another",
		member.GRPCAddress, service, replicaID)
}
