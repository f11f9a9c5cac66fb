package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/test/lab/server"
)

// load describes one pattern of heartbeats.
type load struct {
	name           string
	connections    int
	streams        int // per connection
	holders        int // per stream
	between        time.Duration
	perSecondFloor float64 // below it, the measurement is invalid and fails
}

// measureBeats sends heartbeats of holders without a Node. leasesvc writes no Lease for them, so
// the figure contains only the heartbeat.
func measureBeats(ctx context.Context, cfg config, lease *server.Server) ([]row, error) {
	var rows []row
	for _, l := range []load{
		{name: "100 connections × 100 streams × 1 holder at 1 s", connections: 100, streams: 100, holders: 1, between: time.Second, perSecondFloor: 8000},
		{name: "16 connections × 64 streams × 1 holder, as fast as it goes", connections: 16, streams: 64, holders: 1, perSecondFloor: 1000},
		{name: "4 connections × 1 stream × 256 holders, as fast as it goes", connections: 4, streams: 1, holders: 256, perSecondFloor: 1000},
	} {
		var beats int64
		cpu, err := lease.Process().Spent(func() (err error) {
			beats, err = l.run(ctx, lease.GRPC, cfg.beatFor)
			return err
		})
		if err != nil {
			return nil, err
		}
		rate := float64(beats) / cfg.beatFor.Seconds()
		if rate < l.perSecondFloor {
			return nil, fmt.Errorf("%s: %.0f renewals/s, below %.0f: the load did not come about", l.name, rate, l.perSecondFloor)
		}
		rows = append(rows, row{
			what: "heartbeats, " + l.name,
			figure: fmt.Sprintf("%.0f renewals/s, %.1f µs of server CPU each, %.0f renewals per CPU second",
				rate, float64(cpu.Microseconds())/float64(beats), float64(beats)/cpu.Seconds()),
		})
	}
	return rows, nil
}

// run opens all streams, sends beats for a duration and returns the number of acknowledged
// renewals.
func (l load) run(ctx context.Context, address string, beatFor time.Duration) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group    sync.WaitGroup
		renewals atomic.Int64
		failures = make(chan error, l.connections*l.streams)
	)
	deadline := time.Now().Add(beatFor)
	for c := range l.connections {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return 0, err
		}
		defer connection.Close()
		for s := range l.streams {
			group.Go(func() {
				if err := l.beat(ctx, connection, fmt.Sprintf("bench-%d-%d", c, s), deadline, &renewals); err != nil {
					failures <- err
				}
			})
		}
	}
	group.Wait()
	close(failures)
	return renewals.Load(), <-failures
}

// beat sends a message on one stream, waits for the answer and pauses, until the deadline.
func (l load) beat(ctx context.Context, connection *grpc.ClientConn, name string, deadline time.Time, renewals *atomic.Int64) error {
	stream, err := leasev1.NewHeartbeatServiceClient(connection).StreamHeartbeats(ctx)
	if err != nil {
		return err
	}
	request := &leasev1.StreamHeartbeatsRequest{Registrations: l.registrations(name)}
	for time.Now().Before(deadline) {
		request.Sequence++
		if err := stream.Send(request); err != nil {
			return err
		}
		reply, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(reply.GetRejectedHandles()) > 0 {
			return fmt.Errorf("rejected: %v", reply.GetRejectedHandles()[0])
		}
		if request.Handles == nil {
			if request, err = l.afterRegistration(reply); err != nil {
				return err
			}
		}
		renewals.Add(int64(l.holders))
		pause(ctx, l.between)
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (l load) registrations(name string) []*leasev1.Registration {
	all := make([]*leasev1.Registration, l.holders)
	for i := range all {
		all[i] = &leasev1.Registration{Holder: &leasev1.Holder{Class: "node", Name: fmt.Sprintf("%s-%d", name, i), BootId: "boot"}}
	}
	return all
}

func (l load) afterRegistration(reply *leasev1.StreamHeartbeatsResponse) (*leasev1.StreamHeartbeatsRequest, error) {
	next := &leasev1.StreamHeartbeatsRequest{Sequence: reply.GetSequence()}
	for _, result := range reply.GetRegistrationResults() {
		if result.GetRejection() != nil {
			return nil, fmt.Errorf("not registered: %v", result.GetRejection())
		}
		next.Handles = append(next.Handles, result.GetHandle())
	}
	return next, nil
}

func pause(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
