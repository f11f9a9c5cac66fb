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
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxStreams is how many streams the servers take on one connection.
	maxStreams = 1000
	// opening is how many streams are opened at the same time.
	opening = 64
)

// opener opens a stream for one holder, or for several, and returns what sends a heartbeat and
// waits for the answer.
type opener func(ctx context.Context, connection *grpc.ClientConn, name string) (beat func() error, err error)

// streamSet is open streams that beat together.
type streamSet struct {
	connections []*grpc.ClientConn
	beats       []func() error
	cancel      context.CancelFunc
}

// openStreamSet opens streams on many connections. The caller must close the streamSet.
func openStreamSet(ctx context.Context, address string, open opener, connections, streams int) (*streamSet, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &streamSet{beats: make([]func() error, connections*streams), cancel: cancel}
	var group errgroup.Group // without the context of one, whose end would be that of the streams
	group.SetLimit(opening)
	for i := range connections {
		connection, err := dial(address)
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

// dial makes a connection with small buffers: this process has thousands.
func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
}

func (c *streamSet) close() {
	c.cancel()
	for _, connection := range c.connections {
		_ = connection.Close()
	}
}

// beat lets every stream beat for a time, once in a pace with the streams spread over it, or with
// no pace as fast as answers come. It returns how many heartbeats were answered.
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

// sleepUntil is false if the time is not before the end, or ctx ends meanwhile.
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
