package api

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// FuzzStreamHeartbeats sends two arbitrary messages after a valid one. Each is answered according
// to the rules, or ends the stream with a code that names the client as the cause. The session of
// the valid message survives.
func FuzzStreamHeartbeats(f *testing.F) {
	seed := func(a, b *leasev1.StreamHeartbeatsRequest) {
		first, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		second, err := proto.Marshal(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(first, second)
	}
	beat := &leasev1.StreamHeartbeatsRequest{Sequence: 2, Handles: []uint32{1, 1, 1}}
	seed(beat, &leasev1.StreamHeartbeatsRequest{Sequence: 2, Handles: []uint32{1}})
	seed(beat, &leasev1.StreamHeartbeatsRequest{Sequence: 1<<64 - 1, Handles: []uint32{0, 1<<32 - 1}})
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Registrations: registrations(holders(0, 3)), Handles: []uint32{2}}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Registrations: registrations(holders(1, maxRegistrations+1))}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Handles: make([]uint32, maxBeats+1)}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Registrations: []*leasev1.Registration{nil, {Holder: &leasev1.Holder{Class: "node", Name: "../x", BootId: "\x00"}}}}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Reports: []*leasev1.HandleReport{{Handle: 1, Report: &leasev1.Report{
		ObservedAge: &durationpb.Duration{Seconds: 315_576_000_000, Nanos: 999_999_999},
		CutOffAge:   &durationpb.Duration{Seconds: 315_576_000_000, Nanos: 999_999_999},
		Conditions:  []*leasev1.ReportedCondition{{Type: "A", Status: 99, TransitionAge: durationpb.New(time.Hour)}, {Type: "A"}},
	}}}}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Reports: []*leasev1.HandleReport{nil, {Handle: 2}}}, beat)
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{0x08, 0x02, 0x1a, 0x01, 0x01})

	fx := newFixture(f, setup{maxRegistrations: unlimited})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		c := fx.open(t)
		c.register(holders(0, 1)...)
		for _, raw := range [][]byte{first, second} {
			request := &leasev1.StreamHeartbeatsRequest{}
			if proto.Unmarshal(raw, request) != nil {
				return // gRPC refuses it
			}
			if err := c.respond(t.Context(), request); err != nil {
				if code := status.Code(fx.server.statusOf(err)); code != codes.InvalidArgument && code != codes.ResourceExhausted {
					t.Errorf("error %v, want one that names the client as the cause", err)
				}
				break
			}
			expectValidResponse(t, request, c)
		}
		again := fx.open(t).register(holders(0, 1)...)
		if again.RegistrationResults[0].Handle != 1 {
			t.Errorf("the holder of the valid message gets %v", again.RegistrationResults[0])
		}
	})
}

func expectValidResponse(t *testing.T, request *leasev1.StreamHeartbeatsRequest, c *client) {
	t.Helper()
	response := &c.response
	if response.Sequence != request.Sequence || len(response.RegistrationResults) != len(request.Registrations) {
		t.Errorf("sequence %d with %d results, for %d with %d registrations",
			response.Sequence, len(response.RegistrationResults), request.Sequence, len(request.Registrations))
	}
	for _, r := range response.RegistrationResults {
		if r == nil || r.Result == nil || int(r.Handle) > len(c.handles) {
			t.Errorf("result %v with %d handles", r, len(c.handles))
		}
	}
	if renewed := len(request.Handles) + len(request.Reports) - len(response.RejectedHandles); (renewed > 0) != (response.Grant != nil) && response.Directive == 0 {
		t.Errorf("%d beats were renewed, and the grant is %v", renewed, response.Grant)
	}
	if _, err := proto.Marshal(response); err != nil {
		t.Errorf("the response cannot be encoded: %v", err)
	}
}
