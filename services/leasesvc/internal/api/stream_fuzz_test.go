package api

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Holders: holders(0, 3), Handles: []uint32{2}}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Holders: holders(1, maxHolders+1)}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Handles: make([]uint32, maxBeats+1)}, beat)
	seed(&leasev1.StreamHeartbeatsRequest{Sequence: 3, Holders: []*leasev1.Holder{nil, {Class: "node", Name: "../x", BootId: "\x00"}}}, beat)
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
		if again.Welcomes[0].Handle != 1 {
			t.Errorf("the holder of the valid message gets %v", again.Welcomes[0])
		}
	})
}

func expectValidResponse(t *testing.T, request *leasev1.StreamHeartbeatsRequest, c *client) {
	t.Helper()
	response := &c.response
	if response.Sequence != request.Sequence || len(response.Welcomes) != len(request.Holders) {
		t.Errorf("sequence %d with %d welcomes, for %d with %d holders", response.Sequence, len(response.Welcomes), request.Sequence, len(request.Holders))
	}
	for _, w := range response.Welcomes {
		if w == nil || w.Result == nil || int(w.Handle) > len(c.handles) {
			t.Errorf("welcome %v with %d handles", w, len(c.handles))
		}
	}
	if renewed := len(request.Handles) - len(response.RefusedHandles); (renewed > 0) != (response.Grant != nil) && response.Directive == 0 {
		t.Errorf("%d beats were renewed, and the grant is %v", renewed, response.Grant)
	}
	if _, err := proto.Marshal(response); err != nil {
		t.Errorf("the response cannot be encoded: %v", err)
	}
}
