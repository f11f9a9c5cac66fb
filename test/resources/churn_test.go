package resources

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// churnsAtOnce is how many streams are open at the same time.
	churnsAtOnce = 16
	// maxLeft bounds the goroutines and descriptors that remain: a server has a few that come and
	// go, for example for a request of its metrics.
	maxLeft = 8
	// maxKept bounds the memory that remains.
	maxKept = 16 << 20
)

// receiver is one open stream. receive reads one message.
type receiver interface{ receive() error }

type receive func() error

func (r receive) receive() error { return r() }

// churn is a kind of stream.
type churn struct {
	what   string
	server *replica
	open   func(ctx context.Context, conn *grpc.ClientConn, number int) (receiver, error)
}

func beats(ctx context.Context, conn *grpc.ClientConn, number int) (receiver, error) {
	stream, err := leasev1.NewHeartbeatServiceClient(conn).StreamHeartbeats(ctx)
	if err != nil {
		return nil, err
	}
	holder := &leasev1.Holder{Class: "node", Name: fmt.Sprintf("churn-%d", number%churnsAtOnce), BootId: "boot"}
	err = stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: []*leasev1.Registration{{Holder: holder}}})
	return receive(func() error {
		_, err := stream.Recv()
		return err
	}), err
}

func watchLeases(ctx context.Context, conn *grpc.ClientConn, _ int) (receiver, error) {
	stream, err := leasev1.NewLeaseServiceClient(conn).WatchLeases(ctx, &leasev1.WatchLeasesRequest{})
	return receive(func() error {
		_, err := stream.Recv()
		return err
	}), err
}

func watchSlices(ctx context.Context, conn *grpc.ClientConn, _ int) (receiver, error) {
	stream, err := slicev1.NewSliceServiceClient(conn).WatchServiceSlices(ctx, &slicev1.WatchServiceSlicesRequest{})
	return receive(func() error {
		_, err := stream.Recv()
		return err
	}), err
}

// run opens and ends streams, in three ways in turn: the call is canceled after its first message;
// it is canceled although nothing was read; the connection is closed without a word.
func (c *churn) run(number int) error {
	shared, err := plaintext(c.server.GRPC)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(churnsAtOnce)
	for i := range number {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			conn := shared
			if i%3 == 2 {
				own, err := plaintext(c.server.GRPC)
				if err != nil {
					return err
				}
				defer own.Close()
				conn = own
			}
			stream, err := c.open(ctx, conn, i)
			if err == nil && i%3 != 1 {
				err = stream.receive()
			}
			if err != nil {
				return fmt.Errorf("%s, stream %d: %w", c.what, i, err)
			}
			return nil
		})
	}
	return errors.Join(group.Wait(), shared.Close())
}

func TestChurn(t *testing.T) {
	w := newWorld(t, *long)
	number := 60
	lease := w.newServer(leases, 0)
	gateway := w.newServer(gateways, 0, "--http-listen=")
	kinds := []churn{
		{"leasesvc StreamHeartbeats", lease, beats},
		{"gateway WatchLeases", gateway, watchLeases},
	}
	if *long {
		number = 1000
		w.simulated(10, 20, 200)
		slice := w.newServer(slicing, 0)
		kinds = append(kinds, churn{"leasesvc WatchLeases", lease, watchLeases},
			churn{"slicesvc WatchServiceSlices", slice, watchSlices}, churn{"gateway WatchServiceSlices", gateway, watchSlices})
	}
	for _, s := range w.servers {
		s.start()
	}
	for _, s := range w.servers {
		s.awaitReady()
	}
	w.awaitLeading(lease)
	tb := newTable(t, fmt.Sprintf("%d streams of each kind that end", number))
	for _, c := range kinds {
		// A gateway refuses watches before it has found a replica.
		w.await(startTimeout, func(context.Context) error { return c.run(1) })
		if err := c.run(number); err != nil { // the pools of buffers fill
			t.Fatal(err)
		}
		before := w.settled(c.server, usage{})
		if err := c.run(number); err != nil {
			t.Fatal(err)
		}
		after := w.settled(c.server, before)
		atMost(tb, c.what+": goroutines left", after.goroutines-before.goroutines, maxLeft, count)
		atMost(tb, c.what+": descriptors left", after.Descriptors-before.Descriptors, maxLeft, count)
		atMost(tb, c.what+": heap kept after a garbage collection", after.heap-before.heap, maxKept, mebibytes)
		tb.add(c.what+": resident memory before and after", "%s, %s", mebibytes(before.Resident), mebibytes(after.Resident))
	}
}

// settled waits until a server has ended the streams of its clients: until it has the goroutines of
// before, or no fewer than a second ago.
func (w *world) settled(s *replica, before usage) usage {
	w.Helper()
	u := s.usage()
	for fewer := time.Now(); time.Since(fewer) < time.Second && u.goroutines > before.goroutines; {
		testkit.Pause(context.Background(), 100*time.Millisecond)
		next := s.usage()
		if next.goroutines < u.goroutines || next.Descriptors < u.Descriptors {
			fewer = time.Now()
		}
		u = next
	}
	return u
}
