package api

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
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
		response, err := f.server.Heartbeat(as(t, unchecked()), unary(sequence, every))
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
	ctx := as(t, node("node-0"))
	var last error
	calls := 0
	for ; last == nil && calls < 100; calls++ {
		_, last = f.server.Heartbeat(ctx, unary(uint64(calls+1), holders(0, 1)))
	}
	if status.Code(last) != codes.ResourceExhausted || rpcerror.ReasonOf(last) != "TOO_MANY_MESSAGES" || rpcerror.RetryAfterOf(last) <= 0 {
		t.Errorf("call %d failed with %v, want TOO_MANY_MESSAGES with a pause", calls, last)
	}
	if _, err := f.server.Heartbeat(as(t, unchecked()), unary(1000, holders(0, 1))); err != nil {
		t.Errorf("a client on loopback: %v", err)
	}
}
