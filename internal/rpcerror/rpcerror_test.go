package rpcerror

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestNew_StatusHasExactlyTheGivenDetails(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want *spb.Status
	}{
		"bare": {
			err:  New(codes.NotFound, "LEASE_NOT_FOUND", "no such lease"),
			want: statusProto(t, codes.NotFound, "no such lease", &errdetails.ErrorInfo{Reason: "LEASE_NOT_FOUND", Domain: "trivet.dev"}),
		},
		"everything": {
			err: New(codes.InvalidArgument, ValidationFailedReason, "two fields",
				WithField("b", "too long"), WithMetadata("k", "old"), WithRetryAfter(2*time.Second), WithField("a[3]", "empty"), WithMetadata("k", "v")),
			want: statusProto(t, codes.InvalidArgument, "two fields",
				&errdetails.ErrorInfo{Reason: "VALIDATION_FAILED", Domain: "trivet.dev", Metadata: map[string]string{"k": "v"}},
				&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
					{Field: "b", Description: "too long"}, {Field: "a[3]", Description: "empty"},
				}},
				&errdetails.RetryInfo{RetryDelay: durationpb.New(2 * time.Second)}),
		},
		"a pause that is none": {
			err:  New(codes.Unavailable, "BUSY", "busy", WithRetryAfter(-time.Second)),
			want: statusProto(t, codes.Unavailable, "busy", &errdetails.ErrorInfo{Reason: "BUSY", Domain: "trivet.dev"}),
		},
		"OK is no error": {
			err:  New(codes.OK, InternalReason, "oops"),
			want: statusProto(t, codes.Internal, "oops", &errdetails.ErrorInfo{Reason: "INTERNAL", Domain: "trivet.dev"}),
		},
		"text that is not UTF-8": {
			err: New(codes.InvalidArgument, "BAD", "bad \xff", WithMetadata("k\xff", "v\xff"), WithField("f\xff", "d\xff")),
			want: statusProto(t, codes.InvalidArgument, "bad \uFFFD",
				&errdetails.ErrorInfo{Reason: "BAD", Domain: "trivet.dev", Metadata: map[string]string{"k\uFFFD": "v\uFFFD"}},
				&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "f\uFFFD", Description: "d\uFFFD"}}}),
		},
		"not leader": {
			err: NotLeader("leasesvc", "10.0.0.7:7601"),
			want: statusProto(t, codes.FailedPrecondition, "this replica of leasesvc does not lead; ask 10.0.0.7:7601",
				&errdetails.ErrorInfo{Reason: "NOT_LEADER", Domain: "trivet.dev", Metadata: map[string]string{"redirect_address": "10.0.0.7:7601"}}),
		},
		"no leader": {
			err: NotLeader("leasesvc", ""),
			want: statusProto(t, codes.Unavailable, "this replica of leasesvc does not lead, and knows of no replica that does; try again",
				&errdetails.ErrorInfo{Reason: "NO_LEADER", Domain: "trivet.dev"}),
		},
		"shutting down": {
			err: ShuttingDown(),
			want: statusProto(t, codes.Unavailable, "this replica is shutting down; try another one",
				&errdetails.ErrorInfo{Reason: "SHUTTING_DOWN", Domain: "trivet.dev"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, status.Convert(c.err).Proto(), protocmp.Transform()); diff != "" {
				t.Errorf("status differs (-want +got):\n%s", diff)
			}
		})
	}
}

// A message that quotes a request controls no terminal.
func TestNew_MessageIsPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"zones/\x1b[2J does not exist":     `zones/\x1b[2J does not exist`,
		"DEL \x7f, NUL \x00, C1 \u009b":    `DEL \x7f, NUL \x00, C1 \u009b`,
		"\u202eoverride \u2066isolate":     `\u202eoverride \u2066isolate`,
		"two lines\n\tand a tab":           "two lines\n\tand a tab",
		"no \xff UTF-8, é 界 \u00a0 'q' \\": "no \uFFFD UTF-8, é 界 \u00a0 'q' \\",
	} {
		said := status.Convert(New(codes.NotFound, ValidationFailedReason, text, WithField(text, text), WithMetadata("name", text)))
		if said.Message() != want {
			t.Errorf("message %q, want %q", said.Message(), want)
		}
		for _, detail := range said.Details() {
			switch detail := detail.(type) {
			case *errdetails.BadRequest:
				if field := detail.GetFieldViolations()[0]; field.GetDescription() != want || field.GetField() != want {
					t.Errorf("field %v, want %q", field, want)
				}
			case *errdetails.ErrorInfo:
				if got := detail.GetMetadata()["name"]; got != want {
					t.Errorf("metadata %q, want %q", got, want)
				}
			}
		}
		if completed := status.Convert(Complete(status.New(codes.NotFound, text), ValidationFailedReason)); completed.Message() != want {
			t.Errorf("completed message %q, want %q", completed.Message(), want)
		}
	}
}

func TestComplete_KeepsDetailsThatAreThere(t *testing.T) {
	foreign := &errdetails.ErrorInfo{Reason: "LEASE_NOT_FOUND", Domain: "etcd.io"}
	st, err := status.New(codes.NotFound, "gone").WithDetails(foreign)
	if err != nil {
		t.Fatal(err)
	}
	want := statusProto(t, codes.NotFound, "gone", foreign, &errdetails.ErrorInfo{Reason: "NOT_FOUND", Domain: "trivet.dev"})
	if diff := cmp.Diff(want, status.Convert(Complete(st, "NOT_FOUND")).Proto(), protocmp.Transform()); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
}

func TestReasonOf_UnwrapsAndIgnoresOtherDomains(t *testing.T) {
	foreign, err := status.New(codes.NotFound, "gone").WithDetails(&errdetails.ErrorInfo{
		Reason: "LEASE_NOT_FOUND", Domain: "etcd.io", Metadata: map[string]string{RedirectAddressKey: "theirs"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ours := NotLeader("leasesvc", "10.0.0.7:7601")
	for name, c := range map[string]struct {
		err     error
		reason  Reason
		address string
	}{
		"ours":                {err: ours, reason: NotLeaderReason, address: "10.0.0.7:7601"},
		"ours, wrapped":       {err: fmt.Errorf("beat: %w", ours), reason: NotLeaderReason, address: "10.0.0.7:7601"},
		"ours behind theirs":  {err: Complete(foreign, NotLeaderReason, WithMetadata(RedirectAddressKey, "ours")), reason: NotLeaderReason, address: "ours"},
		"theirs":              {err: foreign.Err()},
		"status without info": {err: status.Error(codes.NotFound, "gone")},
		"no status":           {err: errors.New("oops")},
		"none":                {},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ReasonOf(c.err); got != c.reason {
				t.Errorf("ReasonOf() = %q, want %q", got, c.reason)
			}
			if got := MetadataOf(c.err, RedirectAddressKey); got != c.address {
				t.Errorf("MetadataOf(%q) = %q, want %q", RedirectAddressKey, got, c.address)
			}
		})
	}
}

func statusProto(t *testing.T, code codes.Code, message string, details ...proto.Message) *spb.Status {
	t.Helper()
	want := &spb.Status{Code: int32(code), Message: message}
	for _, detail := range details {
		packed, err := anypb.New(detail)
		if err != nil {
			t.Fatal(err)
		}
		want.Details = append(want.Details, packed)
	}
	return want
}

func TestRetryAfterOf_ReturnsRetryDelay(t *testing.T) {
	paced := New(codes.Unavailable, "REGISTRATION_RATE_LIMITED", "later", WithRetryAfter(3*time.Second))
	for what, c := range map[string]struct {
		err  error
		want time.Duration
	}{
		"asked":         {paced, 3 * time.Second},
		"wrapped":       {fmt.Errorf("open: %w", paced), 3 * time.Second},
		"not asked":     {ShuttingDown(), 0},
		"another error": {errors.New("boom"), 0},
		"none":          {nil, 0},
	} {
		if got := RetryAfterOf(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
