package resources

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// maxRegistered is how many holders one stream may register.
const maxRegistered = 20_000

// registering is a stream that registers holders.
type registering struct {
	*world
	stream   grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]
	sequence uint64
	handles  []uint32
}

func (w *world) newRegistering(ctx context.Context, address string) *registering {
	w.Helper()
	stream, err := leasev1.NewHeartbeatServiceClient(w.dial(address)).StreamHeartbeats(ctx)
	if err != nil {
		w.Fatal(err)
	}
	return &registering{world: w, stream: stream}
}

// register registers holders, and again those that the server asks to return.
func (r *registering) register(names ...string) {
	r.Helper()
	for len(names) > 0 {
		some := names[:min(len(names), 1000)]
		answer := r.exchange(some, nil)
		again := slices.Clone(names[len(some):])
		for i, result := range answer.GetRegistrationResults() {
			if result.GetRejection() != nil {
				again = append(again, some[i])
			} else {
				r.handles = append(r.handles, result.GetHandle())
			}
		}
		if len(again) == len(names) {
			testkit.Pause(r.stream.Context(), 100*time.Millisecond)
		}
		names = again
	}
}

// exchange registers holders, beats for others, and returns the answer.
func (r *registering) exchange(names []string, handles []uint32) *leasev1.StreamHeartbeatsResponse {
	r.Helper()
	r.sequence++
	request := &leasev1.StreamHeartbeatsRequest{Sequence: r.sequence, Handles: handles}
	for _, name := range names {
		request.Registrations = append(request.Registrations, &leasev1.Registration{Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "boot"}})
	}
	if err := r.stream.Send(request); err != nil {
		r.Fatal(err)
	}
	answer, err := r.stream.Recv()
	if err != nil {
		r.Fatal(err)
	}
	return answer
}

// tryOnce registers each holder once, and returns how many were refused.
func (r *registering) tryOnce(names []string) (refused int) {
	r.Helper()
	for some := range slices.Chunk(names, 1000) {
		for _, result := range r.exchange(some, nil).GetRegistrationResults() {
			if result.GetRejection() != nil {
				refused++
			}
		}
	}
	return refused
}

// beat sends a beat of each holder, and returns how many were rejected.
func (r *registering) beat() (rejected int) {
	r.Helper()
	for some := range slices.Chunk(r.handles, 10_000) {
		rejected += len(r.exchange(nil, some).GetRejectedHandles())
	}
	return rejected
}

// awaitLeading waits until a leasesvc registers a holder.
func (w *world) awaitLeading(s *replica) {
	w.Helper()
	conn := w.dial(s.GRPC)
	w.await(startTimeout, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		stream, err := leasev1.NewHeartbeatServiceClient(conn).StreamHeartbeats(ctx)
		if err != nil {
			return err
		}
		holder := &leasev1.Holder{Class: "node", Name: "first", BootId: "boot"}
		if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: []*leasev1.Registration{{Holder: holder}}}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, result := range answer.GetRegistrationResults() {
			if result.GetGrant() != nil {
				return nil
			}
		}
		return fmt.Errorf("no grant: %v", answer)
	})
}
