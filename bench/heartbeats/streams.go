package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxStreams is the number of streams that the servers accept per connection.
	maxStreams = 1000
	// concurrentOpens is the number of streams that are opened concurrently.
	concurrentOpens = 64
)

// opener opens a stream for one or more holders, and returns a function that sends a heartbeat and
// waits for the answer.
type opener func(ctx context.Context, connection *grpc.ClientConn, name string) (beat func() error, err error)

// streamSet is a set of open streams that beat concurrently.
type streamSet struct {
	connections []*grpc.ClientConn
	beats       []func() error
	cancel      context.CancelFunc
}

// openStreamSet opens streams on many connections, which use the transports in turn. The caller
// must close the streamSet.
func openStreamSet(
	ctx context.Context, address string, transports []credentials.TransportCredentials, open opener, connections, streams int,
) (*streamSet, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &streamSet{beats: make([]func() error, connections*streams), cancel: cancel}
	var group errgroup.Group // without a context, whose end would end the streams
	group.SetLimit(concurrentOpens)
	for i := range connections {
		connection, err := dialWith(address, transports[i%len(transports)])
		if err != nil {
			c.close()
			return nil, errors.Join(err, group.Wait())
		}
		c.connections = append(c.connections, connection)
		for s := range streams {
			group.Go(func() (err error) {
				c.beats[i*streams+s], err = open(ctx, connection, fmt.Sprintf("bench-%d-%d", i, s))
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		c.close()
		return nil, fmt.Errorf("open streams: %w", err)
	}
	return c, nil
}

// dial opens a connection with small buffers, because this process has thousands of connections.
func dial(address string) (*grpc.ClientConn, error) {
	return dialWith(address, insecure.NewCredentials())
}

func dialWith(address string, transport credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, grpc.WithTransportCredentials(transport),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
}

func (c *streamSet) close() {
	c.cancel()
	for _, connection := range c.connections {
		_ = connection.Close()
	}
}

// beat sends beats on every stream for a time. With a pace, each stream beats once per pace, and
// the streams are spread over it. Without a pace, a stream beats again at each answer. It returns
// the number of answered heartbeats.
func (c *streamSet) beat(ctx context.Context, d, pace time.Duration) (int64, error) {
	group, ctx := errgroup.WithContext(ctx)
	var answered atomic.Int64
	begin := time.Now()
	for _, beat := range c.beats {
		group.Go(func() error {
			count := int64(0)
			defer func() { answered.Add(count) }()
			next := begin
			if pace > 0 {
				next = next.Add(rand.N(pace))
			}
			for ; ; next = next.Add(pace) {
				if time.Since(begin) >= d || !sleepUntil(ctx, next, begin.Add(d)) {
					return nil
				}
				if err := beat(); err != nil {
					return err
				}
				count++
			}
		})
	}
	err := group.Wait()
	return answered.Load(), err
}

// sleepUntil returns false if the time is not before the end, or if ctx ends first.
func sleepUntil(ctx context.Context, at, end time.Time) bool {
	if !at.Before(end) {
		return false
	}
	pause(ctx, time.Until(at))
	return ctx.Err() == nil
}

// pause returns early when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
