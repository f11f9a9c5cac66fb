package api

import (
	"context"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// RecvMsg returns by gRPC's context. The context of the handler is derived from it and ends later,
// so a stream can be lost while its context is alive.
func TestReceipts_CountAStreamAsLostByWhatItReceives(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: unlimited})
	denied := rpcerror.New(codes.Unauthenticated, rpcerror.NotAuthenticatedReason, "the token was revoked")
	for _, c := range []struct {
		name            string
		received, cause error
		lost            uint64
	}{
		{name: "the client is gone", received: status.Error(codes.Canceled, "context canceled"), lost: 1},
		{name: "the client's deadline", received: status.Error(codes.DeadlineExceeded, "context deadline exceeded"), lost: 1},
		{name: "the client is gone, and the context ends first", cause: context.Canceled, lost: 1},
		{name: "the client ends the stream", received: io.EOF},
		{name: "the message is too large", received: status.Error(codes.ResourceExhausted, "received message larger than max")},
		{name: "the request is denied", received: denied},
		{name: "this replica stops", cause: rpcerror.ShuttingDown()},
		{name: "the caller is denied", cause: denied},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := f.server.Receipts().LostStreams
			s := f.openStreamAs(t, unchecked())
			s.register(holders(0, 1)...)
			if got := f.server.Receipts().Streams; got != 1 {
				t.Errorf("%d streams are open, want 1", got)
			}
			if c.cause != nil {
				s.cancel(c.cause)
			} else {
				s.failure <- c.received
			}
			<-s.ended
			if got := f.server.Receipts(); got.Streams != 0 || got.LostStreams-before != c.lost {
				t.Errorf("%d open and %d lost streams, want none open and %d lost", got.Streams, got.LostStreams-before, c.lost)
			}
		})
	}
}
