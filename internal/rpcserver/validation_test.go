package rpcserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

func validBeat() *leasev1.HeartbeatRequest {
	return &leasev1.HeartbeatRequest{Beats: []*leasev1.Beat{
		{Holder: &leasev1.Holder{Class: "node", Name: "node-1", BootId: "boot"}, Sequence: 1},
	}}
}

func beatsOf(names ...string) *leasev1.HeartbeatRequest {
	request := &leasev1.HeartbeatRequest{}
	for _, name := range names {
		request.Beats = append(request.Beats, &leasev1.Beat{Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "boot"}})
	}
	return request
}

// accepting handles every call and records whether it was called.
func accepting(reached *bool) *leases {
	return &leases{
		beat: func(context.Context, *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
			*reached = true
			return &leasev1.HeartbeatResponse{}, nil
		},
		stream: func(s grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
			for {
				request, err := s.Recv()
				if err != nil {
					return fmt.Errorf("receive beat: %w", err)
				}
				if err := s.Send(&leasev1.StreamHeartbeatsResponse{Sequence: request.GetSequence()}); err != nil {
					return err
				}
			}
		},
	}
}

func TestServer_ValidRequestReachesTheHandler(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached)})
	if _, err := r.heartbeats.Heartbeat(t.Context(), validBeat()); err != nil || !reached {
		t.Errorf("Heartbeat() = %v, handler reached: %t; want neither error nor detour", err, reached)
	}
}

func TestServer_InvalidRequestNamesItsFields(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached)})
	_, err := r.heartbeats.Heartbeat(t.Context(), beatsOf("node-1", "Node 2", ""))
	want := []proto.Message{info("VALIDATION_FAILED"), &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
		{Field: "beats[1].holder.name"}, {Field: "beats[2].holder.name"}, {Field: "beats[2].holder.name"},
	}}}
	// What a rule says is protovalidate's text; that it says something is ours to check.
	if diff := cmp.Diff(want, details(t, err), protocmp.Transform(), protocmp.IgnoreFields(&errdetails.BadRequest_FieldViolation{}, "description")); diff != "" {
		t.Errorf("details differ (-want +got):\n%s", diff)
	}
	for _, violation := range fieldsOf(t, err) {
		if violation.GetDescription() == "" {
			t.Errorf("%s: violation without a description", violation.GetField())
		}
	}
	if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "invalid request: beats[1].holder.name: ") {
		t.Errorf("%v, want %v with the first field", err, codes.InvalidArgument)
	}
	if reached {
		t.Error("the handler got an invalid request")
	}
}

func TestServer_ManyViolationsFitIntoTrailers(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached)})
	// Of a large request, only the first violation is looked for.
	_, err := r.heartbeats.Heartbeat(t.Context(), beatsOf(slices.Repeat([]string{strings.Repeat("É", 200)}, 100)...))
	if got := len(fieldsOf(t, err)); got != 1 {
		t.Errorf("%d fields told in %v, want 1", got, err)
	}
	_, err = r.heartbeats.Heartbeat(t.Context(), beatsOf(slices.Repeat([]string{"É"}, 24)...))
	if got := len(fieldsOf(t, err)); got != 10 || !strings.Contains(err.Error(), " more)") {
		t.Errorf("%d fields told in %v, want 10 and the number of the others", got, err)
	}
	raw, marshalErr := proto.Marshal(status.Convert(err).Proto())
	if marshalErr != nil {
		t.Fatal(marshalErr)
	}
	if limit := 5 << 10; len(raw) > limit {
		t.Errorf("the status has %d bytes, want at most %d: base64 and the message beside it must stay within 8 KiB", len(raw), limit)
	}
}

func TestServer_UnvalidatedMethodReachesHandlerUnchecked(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached), unvalidated: []string{leasev1.HeartbeatService_Heartbeat_FullMethodName}})
	if _, err := r.heartbeats.Heartbeat(t.Context(), &leasev1.HeartbeatRequest{}); err != nil || !reached {
		t.Errorf("Heartbeat() = %v, handler reached: %t; want the handler to decide", err, reached)
	}
}

func TestServer_InvalidStreamMessageEndsTheStream(t *testing.T) {
	r := start(t, setup{service: accepting(new(bool))})
	stream, err := r.heartbeats.StreamHeartbeats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatalf("answer to a valid message: %v", err)
	}
	if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 0}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if status.Code(err) != codes.InvalidArgument || rpcerror.ReasonOf(err) != rpcerror.ValidationFailedReason {
		t.Errorf("answer to an invalid message: %v, want %v", err, codes.InvalidArgument)
	}
	if fields := fieldsOf(t, err); len(fields) != 1 || fields[0].GetField() != "sequence" {
		t.Errorf("violations %v, want one of sequence", fields)
	}
}

func TestServe_UnknownUnvalidatedMethodIsRefused(t *testing.T) {
	server := newServer(t, setup{service: &leases{}}, rpcserver.Deps{
		Logger:      slog.New(slog.DiscardHandler),
		Unvalidated: []string{"/trivet.lease.v1.HeartbeatService/Hartbeat"},
	})
	err := server.Serve(t.Context(), bufconn.Listen(1))
	if err == nil || !strings.Contains(err.Error(), "Hartbeat") || !strings.Contains(err.Error(), leasev1.HeartbeatService_Heartbeat_FullMethodName) {
		t.Errorf("Serve() = %v, want an error with the wrong name and the right ones", err)
	}
}

func fieldsOf(t *testing.T, err error) []*errdetails.BadRequest_FieldViolation {
	t.Helper()
	for _, detail := range details(t, err) {
		if request, ok := detail.(*errdetails.BadRequest); ok {
			return request.GetFieldViolations()
		}
	}
	return nil
}
