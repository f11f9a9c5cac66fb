package robustness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/certs"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// receiver is an open stream, without the type of its messages.
type receiver interface{ receive() error }

// received adapts a client stream to receiver.
type received[T any] struct{ grpc.ServerStreamingClient[T] }

func (r received[T]) receive() error {
	_, err := r.Recv()
	return err
}

func watching[T any](stream grpc.ServerStreamingClient[T], err error) (receiver, error) {
	return received[T]{stream}, err
}

// watch opens a watch of a service, which sends all it has at first, then changes.
func watch(ctx context.Context, conn grpc.ClientConnInterface, service string) (receiver, error) {
	switch service {
	case history.Leasesvc:
		return watching(leasev1.NewLeaseServiceClient(conn).WatchLeases(ctx, &leasev1.WatchLeasesRequest{}))
	case history.Bootstrapsvc:
		return watching(bootstrapv1.NewFindingServiceClient(conn).WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{}))
	default: // The gateway has it too.
		return watching(slicev1.NewSliceServiceClient(conn).WatchServiceSlices(ctx, &slicev1.WatchServiceSlicesRequest{}))
	}
}

// heldStreams are one watch of each program.
type heldStreams struct {
	*world
	cancel  context.CancelFunc
	conns   []*grpc.ClientConn
	readers sync.WaitGroup
	updates int64 // begins and ends of roll-outs before it; a roll-out ends streams
}

// holdStreams opens a watch of each program, and returns once each has sent something. It records
// each stream as a call that fails if it ends before end is called.
func (w *world) holdStreams() (*heldStreams, error) {
	ctx, cancel := context.WithCancel(context.Background())
	held := &heldStreams{world: w, cancel: cancel, updates: w.updates.Load()}
	for _, s := range w.slots {
		if s.Service == history.Bootstrapsvc && s != w.leader(s.Service) {
			continue // Only the leader has findings.
		}
		conn, err := w.dialAsAdministrator(s.GRPC, s.Service)
		if err != nil {
			held.end()
			return nil, err
		}
		held.conns = append(held.conns, conn)
		made := history.Call{Method: "watch", Target: s.Name, From: w.now()}
		opened := make(chan struct{})
		held.readers.Go(func() {
			stream, err := watch(ctx, conn, s.Service)
			for first := true; err == nil; first = false {
				if err = stream.receive(); first {
					close(opened)
				}
			}
			if made.To = w.now(); ctx.Err() == nil {
				made.Failed = err.Error()
			}
			if underWay := held.updates%2 == 1; underWay || w.updates.Load() != held.updates {
				return
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.record.Calls = append(w.record.Calls, made)
		})
		select {
		case <-opened:
		case <-time.After(requestTimeout): // Another fault holds it up.
		}
	}
	return held, nil
}

// end ends the streams.
func (h *heldStreams) end() {
	h.cancel()
	h.readers.Wait()
	for _, conn := range h.conns {
		_ = conn.Close()
	}
}

const (
	churnConnections = 50
	streamsOfEach    = 20
	// leftGoroutines, leftFiles and leftMemory are what a replica may have more after 1,000 streams
	// than before: what it has for its other callers changes too. memory is in MiB.
	leftGoroutines, leftFiles, leftMemory = 250, 40, 96
)

// churnStreams opens 1,000 streams to one replica, which answers each, and ends them. What the
// replica keeps for them goes.
func (w *world) churnStreams(target *slot, _ schedule.Fault) error {
	process := target.ProcessName()
	before, err := w.consumptionOf(target)
	if err != nil {
		return w.unlessDisturbed(target, process, err)
	}
	var churning sync.WaitGroup
	results := make([]error, churnConnections)
	for n := range churnConnections {
		churning.Go(func() { results[n] = w.churnConnection(target, n) })
	}
	churning.Wait()
	if err := errors.Join(results...); err != nil {
		return w.unlessDisturbed(target, process, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*requestTimeout)
	defer cancel()
	after, err := w.consumptionOf(target)
	for ctx.Err() == nil && err == nil && (after.goroutines > before.goroutines+leftGoroutines || after.files > before.files+leftFiles) {
		testkit.Pause(ctx, 500*time.Millisecond)
		after, err = w.consumptionOf(target)
	}
	if err == nil && !w.disturbed(target, process) {
		w.level(target, "goroutines after 1,000 streams", after.goroutines, 0, before.goroutines+leftGoroutines)
		w.level(target, "open files after 1,000 streams", after.files, 0, before.files+leftFiles)
		w.level(target, "resident memory after 1,000 streams, in MiB", after.memory, 0, before.memory+leftMemory)
	}
	return w.unlessDisturbed(target, process, err)
}

// churnConnection opens streams over one connection, some at a time.
func (w *world) churnConnection(target *slot, number int) error {
	name := fmt.Sprintf("caller-%d", number)
	conn, err := w.pki.Dial(target.GRPC, target.Service, name, certs.ClientLeaf(name))
	if err != nil {
		return err
	}
	defer conn.Close()
	for range streamsOfEach {
		err := w.openAndEnd(conn, target.Service, number%2 == 0)
		for status.Code(err) == codes.ResourceExhausted { // One caller may begin a few watches per second.
			testkit.Pause(context.Background(), 250*time.Millisecond)
			err = w.openAndEnd(conn, target.Service, number%2 == 0)
		}
		if err != nil {
			return fmt.Errorf("a stream to %s: %w", target.Name, err)
		}
	}
	return nil
}

// openAndEnd opens one stream, awaits an answer and ends it.
func (w *world) openAndEnd(conn *grpc.ClientConn, service string, beats bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*requestTimeout)
	defer cancel()
	if service != history.Leasesvc || !beats {
		stream, err := watch(ctx, conn, service)
		if err != nil {
			return err
		}
		return stream.receive()
	}
	stream, err := leasev1.NewHeartbeatServiceClient(conn).StreamHeartbeats(ctx)
	if err != nil {
		return err
	}
	// The replica answers with a rejection: it has no such class.
	if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: []*leasev1.Registration{{
		Holder: &leasev1.Holder{Class: "caller", Name: "caller", BootId: "boot"},
	}}}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// consumption is what a process uses.
type consumption struct{ goroutines, files, memory float64 }

func (w *world) consumptionOf(s *slot) (u consumption, err error) {
	if u.goroutines, err = w.metric(context.Background(), s, "go_goroutines", ""); err != nil {
		return u, err
	}
	used, err := s.Process().Usage()
	u.files, u.memory = float64(used.Descriptors), float64(used.Resident)/(1<<20)
	return u, err
}

// disturbed reports whether a measurement of a process means nothing: it was restarted since the
// fault began, or another fault of the step concerns its service.
func (w *world) disturbed(s *slot, process string) bool {
	concerned := 0
	for _, f := range *w.present.Load() {
		if f.Service == "" || f.Service == s.Service || s.Service == history.Gateway {
			concerned++
		}
	}
	return s.ProcessName() != process || concerned > 1
}

// unlessDisturbed returns an error of a measurement of a process, and nil if the process is
// disturbed.
func (w *world) unlessDisturbed(s *slot, process string, err error) error {
	if w.disturbed(s, process) {
		return nil
	}
	return err
}
