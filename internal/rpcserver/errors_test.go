package rpcserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// answer is the result of a failed call for the caller and in the log.
type answer struct {
	Code    codes.Code
	Message string
	Details []proto.Message
	Level   string
	Cause   string
}

const hiddenText = "internal error; the server's log has the cause"

// errorCases map errors of a handler to results. Unary calls and streams have the same results.
func errorCases(t *testing.T) map[string]struct {
	returned error
	want     answer
} {
	t.Helper()
	foreign := &errdetails.ResourceInfo{ResourceType: "lease", ResourceName: "node-1"}
	withDetail, err := status.New(codes.FailedPrecondition, "not now").WithDetails(foreign)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]struct {
		returned error
		want     answer
	}{
		"an error of ours passes unchanged": {
			returned: rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "no lease node-1", rpcerror.WithMetadata("name", "node-1")),
			want: answer{Code: codes.NotFound, Message: "no lease node-1", Level: "INFO", Details: []proto.Message{
				&errdetails.ErrorInfo{Reason: "LEASE_NOT_FOUND", Domain: "trivet.dev", Metadata: map[string]string{"name": "node-1"}},
			}},
		},
		"an unknown error is hidden": {
			returned: errors.New("password=hunter2"),
			want:     answer{Code: codes.Internal, Message: hiddenText, Level: "ERROR", Cause: "password=hunter2", Details: []proto.Message{info("INTERNAL")}},
		},
		"an end of file is an unknown error": {
			returned: fmt.Errorf("read cache: %w", io.EOF),
			want:     answer{Code: codes.Internal, Message: hiddenText, Level: "ERROR", Cause: "read cache: EOF", Details: []proto.Message{info("INTERNAL")}},
		},
		"an UNKNOWN of a library is hidden": {
			returned: status.Error(codes.Unknown, "password=hunter2"),
			want:     answer{Code: codes.Internal, Message: hiddenText, Level: "ERROR", Cause: "rpc error: code = Unknown desc = password=hunter2", Details: []proto.Message{info("INTERNAL")}},
		},
		"a status without a reason gets its code as one": {
			returned: withDetail.Err(),
			want:     answer{Code: codes.FailedPrecondition, Message: "not now", Level: "INFO", Details: []proto.Message{foreign, info("FAILED_PRECONDITION")}},
		},
		"a deadline keeps its code": {
			returned: fmt.Errorf("ask etcd: %w", context.DeadlineExceeded),
			want: answer{Code: codes.DeadlineExceeded, Message: "the call ended before its work did", Level: "WARN",
				Cause: "ask etcd: context deadline exceeded", Details: []proto.Message{info("DEADLINE_EXCEEDED")}},
		},
		"a cancellation keeps its code": {
			returned: context.Canceled,
			want: answer{Code: codes.Canceled, Message: "the call ended before its work did", Level: "DEBUG",
				Cause: "context canceled", Details: []proto.Message{info("CANCELLED")}},
		},
	}
}

func TestServer_UnaryErrorsAreTranslated(t *testing.T) {
	for name, c := range errorCases(t) {
		t.Run(name, func(t *testing.T) {
			r := start(t, setup{service: &leases{get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
				return nil, c.returned
			}}})
			_, err := r.client.GetLease(t.Context(), validGet())
			if diff := cmp.Diff(c.want, seen(t, r, "GetLease", err), protocmp.Transform()); diff != "" {
				t.Errorf("answer differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServer_StreamErrorsAreTranslated(t *testing.T) {
	for name, c := range errorCases(t) {
		t.Run(name, func(t *testing.T) {
			r := start(t, setup{service: &leases{watch: func(_ *leasev1.WatchLeasesRequest, s grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
				if err := s.Send(&leasev1.WatchLeasesResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK}); err != nil {
					return err
				}
				return c.returned
			}}})
			watch, err := r.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := watch.Recv(); err != nil {
				t.Fatalf("first message: %v", err)
			}
			_, err = watch.Recv()
			if diff := cmp.Diff(c.want, seen(t, r, "WatchLeases", err), protocmp.Transform()); diff != "" {
				t.Errorf("answer differs (-want +got):\n%s", diff)
			}
		})
	}
}

// seen stops the server, so that its log is complete, and checks for exactly one line about the
// call.
func seen(t *testing.T, r *running, method string, err error) answer {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Errorf("Serve() = %v, want nil", err)
	}
	lines := r.log.calls(t, method)
	if len(lines) != 1 {
		t.Fatalf("%d log lines for one call, want one: %v", len(lines), lines)
	}
	if want := status.Code(err).String(); lines[0]["grpc.code"] != want {
		t.Errorf("logged code %q, want %q", lines[0]["grpc.code"], want)
	}
	if want := string(rpcerror.ReasonOf(err)); lines[0]["grpc.reason"] != want {
		t.Errorf("logged reason %q, want %q", lines[0]["grpc.reason"], want)
	}
	st := status.Convert(err)
	return answer{Code: st.Code(), Message: st.Message(), Details: details(t, err), Level: lines[0]["level"], Cause: lines[0]["cause"]}
}

func TestServer_PanicEndsOnlyItsCall(t *testing.T) {
	r := start(t, setup{service: &leases{
		get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
			panic("unary handler broke")
		},
		watch: func(*leasev1.WatchLeasesRequest, grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
			panic("stream handler broke")
		},
		beat: func(context.Context, *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
			return &leasev1.HeartbeatResponse{}, nil
		},
	}})
	_, unary := r.client.GetLease(t.Context(), validGet())
	watch, err := r.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, stream := watch.Recv()
	for method, err := range map[string]error{"GetLease": unary, "WatchLeases": stream} {
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "broke") {
			t.Errorf("%s: %v, want %v without what the handler panicked with", method, err, codes.Internal)
		}
		if diff := cmp.Diff([]proto.Message{info("PANIC")}, details(t, err), protocmp.Transform()); diff != "" {
			t.Errorf("%s: details differ (-want +got):\n%s", method, diff)
		}
	}
	if _, err := r.heartbeats.Heartbeat(t.Context(), validBeat()); err != nil {
		t.Errorf("a call after the panics: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for method, frame := range map[string]string{"GetLease": "leases).GetLease", "WatchLeases": "leases).WatchLeases"} {
		lines := r.log.calls(t, method)
		if len(lines) != 1 || lines[0]["level"] != "ERROR" || !strings.Contains(lines[0]["cause"], "handler broke") || !strings.Contains(lines[0]["stack"], frame) {
			t.Errorf("%s: logged %v, want one error with cause and stack", method, lines)
		}
	}
	if diff := cmp.Diff(map[string]float64{"": 2}, r.counts(t, "trivet_rpc_panics_total")); diff != "" {
		t.Errorf("counted panics differ (-want +got):\n%s", diff)
	}
}

func TestServer_MetricsCountCallsByReturnedCode(t *testing.T) {
	r := start(t, setup{service: &leases{get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
		return nil, errors.New("oops")
	}}})
	if _, err := r.client.GetLease(t.Context(), validGet()); err == nil {
		t.Fatal("the call succeeded")
	}
	// Callers invent method names; none of them may become a label.
	if err := r.conn.Invoke(t.Context(), "/made.up/Name", validGet(), &leasev1.GetLeaseResponse{}); status.Code(err) != codes.Unimplemented {
		t.Fatalf("unknown method: %v, want %v", err, codes.Unimplemented)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"grpc_code=Internal grpc_method=GetLease grpc_service=trivet.lease.v1.LeaseService grpc_type=unary": 1}
	if diff := cmp.Diff(want, r.counts(t, "grpc_server_handled_total")); diff != "" {
		t.Errorf("counted calls differ (-want +got):\n%s", diff)
	}
}

func TestServer_UnknownMethodsAreNamed(t *testing.T) {
	for name, method := range map[string]string{
		"method":  "/trivet.lease.v1.LeaseService/FreeLease",
		"service": "/trivet.lease.v2.LeaseService/GetLease",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, setup{service: &leases{}})
			err := r.conn.Invoke(t.Context(), method, validGet(), &leasev1.GetLeaseResponse{})
			if status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), method) {
				t.Errorf("%v, want %v with the name of the method", err, codes.Unimplemented)
			}
			if diff := cmp.Diff([]proto.Message{info("UNKNOWN_METHOD")}, details(t, err), protocmp.Transform()); diff != "" {
				t.Errorf("details differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServer_SuccessAndProbesAreLoggedQuietly(t *testing.T) {
	r := start(t, setup{service: &leases{get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
		return &leasev1.GetLeaseResponse{}, nil
	}}})
	if _, err := r.client.GetLease(t.Context(), validGet()); err != nil {
		t.Fatal(err)
	}
	if _, err := checkHealth(t, r, "no.such.Service"); status.Code(err) != codes.NotFound {
		t.Fatalf("health of an unknown service: %v, want %v", err, codes.NotFound)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"GetLease", "Check"} {
		lines := r.log.calls(t, method)
		if len(lines) != 1 || lines[0]["level"] != "DEBUG" {
			t.Errorf("%s: logged %v, want one line at DEBUG", method, lines)
		}
	}
}
