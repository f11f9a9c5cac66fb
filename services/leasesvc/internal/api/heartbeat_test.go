package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// unary returns a call with one beat of each holder.
func unary(sequence uint64, holders []*leasev1.Holder) *leasev1.HeartbeatRequest {
	request := &leasev1.HeartbeatRequest{}
	for _, h := range holders {
		request.Beats = append(request.Beats, &leasev1.Beat{Holder: h, Sequence: sequence})
	}
	return request
}

// Beats by name that open sessions are admitted at the rate of streams. Renewals need no admission.
func TestHeartbeat_NewSessionsArePacedAndRenewalsAreNot(t *testing.T) {
	const rate, all = 10, 50
	f := newFixture(t, setup{maxRegistrations: rate})
	beat := func(sequence uint64) (granted []*leasev1.Holder) {
		t.Helper()
		every := holders(0, all)
		response, err := f.beat(t, unchecked(), unary(sequence, every))
		if err != nil {
			t.Fatal(err)
		}
		for i, result := range response.Results {
			why := result.GetRejection()
			switch {
			case result.GetGrant() != nil:
				granted = append(granted, every[i])
			case why.GetReason() != "REGISTRATION_RATE_LIMITED" || why.GetRetryAfter().AsDuration() <= 0:
				t.Errorf("rejected with %v", why)
			}
		}
		return granted
	}
	first := beat(1)
	if len(first) < rate || len(first) > 2*rate {
		t.Fatalf("%d of %d new sessions were admitted at once, want %d", len(first), all, rate)
	}
	second := map[string]bool{}
	for _, h := range beat(2) {
		second[h.Name] = true
	}
	for _, h := range first {
		if !second[h.Name] {
			t.Errorf("the renewal of %s was rejected", h.Name)
		}
	}
}

// An identity that sends too many calls is rejected like one that sends too many messages.
func TestHeartbeat_CallsAreMetered(t *testing.T) {
	f := newFixture(t, setup{maxMessages: 2})
	var last error
	calls := 0
	for ; last == nil && calls < 100; calls++ {
		_, last = f.beat(t, node("node-0"), unary(uint64(calls+1), holders(0, 1)))
	}
	if status.Code(last) != codes.ResourceExhausted || rpcerror.ReasonOf(last) != "TOO_MANY_MESSAGES" || rpcerror.RetryAfterOf(last) <= 0 {
		t.Errorf("call %d failed with %v, want TOO_MANY_MESSAGES with a pause", calls, last)
	}
	if _, err := f.beat(t, unchecked(), unary(1000, holders(0, 1))); err != nil {
		t.Errorf("a client on loopback: %v", err)
	}
}

// knownCaller is an Authenticator of one caller.
type knownCaller struct{ *authn.Caller }

func (k knownCaller) Authenticate(context.Context, authn.Request) (*authn.Caller, error) {
	return k.Caller, nil
}

// serve returns a client of a gRPC server whose calls are all of one caller.
func (f *fixture) serve(t *testing.T, caller *authn.Caller) leasev1.HeartbeatServiceClient {
	t.Helper()
	limits, err := quota.New(quota.Methods(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return leasev1.NewHeartbeatServiceClient(testkit.ServeWith(t, rpcserver.Deps{
		Authenticator: knownCaller{caller}, Authorizer: authz.New(nil), Holders: f.server, Quota: limits, Unvalidated: Unvalidated(),
	}, func(r grpc.ServiceRegistrar) { leasev1.RegisterHeartbeatServiceServer(r, f.server) }))
}

// fullReport has as many conditions as given, with all fields.
func fullReport(conditions int) *leasev1.Report {
	report := &leasev1.Report{ObservedAge: durationpb.New(time.Second)}
	for i := range conditions {
		report.Conditions = append(report.Conditions, &leasev1.ReportedCondition{
			Type: fmt.Sprintf("Type%d", i), Status: 1, Reason: "Reason", Message: "message", TransitionAge: durationpb.New(time.Minute),
		})
	}
	return report
}

// A caller that batches sends the largest messages that the .proto promises. kube-apiserver decides
// about it once for a call, and other callers have the limit of one holder.
func TestHeartbeats_TakeTheLargestMessagesOfACallerThatBatches(t *testing.T) {
	r := &reviewer{answer: func(user authn.User, _ authz.Attributes) (authz.Decision, error) {
		return authz.Decision{Allowed: user.Name == "alice"}, nil
	}}
	f := newFixture(t, setup{furtherClasses: []class.Class{reviewedClass()}, authorizer: authz.New(r), maxRegistrations: unlimited})
	client := f.serve(t, certified("alice"))

	request := unary(1, sidecars(0, 1000))
	for _, beat := range request.Beats {
		beat.Holder.Name, beat.Report = strings.Repeat("n", 253-len(beat.Holder.Name))+beat.Holder.Name, fullReport(16)
	}
	if size := proto.Size(request); size < 700<<10 {
		t.Fatalf("the message has %d bytes", size)
	}
	response, err := client.Heartbeat(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	for i, result := range response.Results {
		if result.GetGrant() == nil {
			t.Fatalf("beat %d: %v", i, result)
		}
	}
	if n := r.reviews.Load(); len(response.Results) != 1000 || n != 1 {
		t.Errorf("%d results after %d reviews, want 1000 after one", len(response.Results), n)
	}
	if _, err := f.serve(t, node("node-0")).Heartbeat(t.Context(), request); rpcerror.ReasonOf(err) != quota.MessageTooLargeReason {
		t.Errorf("the same by a node: %v, want %s", err, quota.MessageTooLargeReason)
	}

	stream, err := client.StreamHeartbeats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(message *leasev1.StreamHeartbeatsRequest) *leasev1.StreamHeartbeatsResponse {
		t.Helper()
		if err := stream.Send(message); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if renewed := answer.Grant != nil; renewed != (len(message.Registrations) == 0) || len(answer.RejectedHandles) > 0 {
			t.Fatalf("message %d: grant %v, %d handles are rejected", message.Sequence, answer.Grant, len(answer.RejectedHandles))
		}
		return answer
	}
	handles, reports := &leasev1.StreamHeartbeatsRequest{Sequence: 11}, &leasev1.StreamHeartbeatsRequest{Sequence: 12}
	for i := range 10 {
		answer := exchange(&leasev1.StreamHeartbeatsRequest{Sequence: uint64(i + 1), Registrations: registrations(sidecars(1000*i, 1000))})
		for _, result := range answer.RegistrationResults {
			if result.GetGrant() == nil {
				t.Fatalf("registration: %v", result)
			}
			handles.Handles = append(handles.Handles, result.Handle)
			reports.Reports = append(reports.Reports, &leasev1.HandleReport{Handle: result.Handle, Report: fullReport(2)})
		}
	}
	exchange(handles)
	if size := proto.Size(reports); len(reports.Reports) != 10_000 || size < 700<<10 {
		t.Fatalf("%d reports in %d bytes", len(reports.Reports), size)
	}
	exchange(reports)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if lease, found := f.leaseOf(sidecars(9999, 1)[0]); !found || len(lease.Conditions) != 2 {
		t.Errorf("the last holder has %d conditions, want 2", len(lease.Conditions))
	}
}

// While kube-apiserver does not answer, a call waits for it once.
func TestHeartbeat_AsksOnceWhatTheCallerMay(t *testing.T) {
	r := &reviewer{answer: func(user authn.User, _ authz.Attributes) (authz.Decision, error) {
		if user.Name == "dora" {
			return authz.Decision{}, errors.New("away")
		}
		return authz.Decision{Allowed: true}, nil
	}}
	f := newFixture(t, setup{furtherClasses: []class.Class{reviewedClass()}, authorizer: authz.New(r)})
	small, large := unary(1, sidecars(0, 1)), unary(1, sidecars(0, 1000))
	for _, beat := range large.Beats {
		beat.Report = fullReport(2)
	}
	for _, name := range []string{"alice", "dora"} {
		client := f.serve(t, certified(name))
		for what, call := range map[string]func() error{
			"one beat":      func() error { _, err := client.Heartbeat(t.Context(), small); return err },
			"a large batch": func() error { _, err := client.Heartbeat(t.Context(), large); return err },
			"a release": func() error {
				_, err := client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: sidecars(1, 1)[0], ValidateOnly: true})
				return err
			},
		} {
			before := r.reviews.Load()
			err := call()
			if wants := name == "dora" && what != "one beat"; (status.Code(err) == codes.Unavailable) != wants {
				t.Errorf("%s of %s: %v, want it to be unavailable: %t", what, name, err, wants)
			}
			if n := r.reviews.Load() - before; n != 1 {
				t.Errorf("%s of %s: %d reviews, want 1", what, name, n)
			}
		}
	}
	// A message that comes late is decided with another answer.
	before := r.reviews.Load()
	ctx, err := f.begin(t, certified("alice"), leasev1.HeartbeatService_Heartbeat_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	call, _ := ctx.Value(begunKey{}).(*begunCall)
	call.at = call.at.Add(-begunTime)
	if _, err := f.server.Heartbeat(ctx, small); err != nil || r.reviews.Load()-before != 2 {
		t.Errorf("a late message: %v after %d reviews, want 2", err, r.reviews.Load()-before)
	}
}
