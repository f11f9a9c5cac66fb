package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// memoryTarget is the allowed memory of a holder in bytes, beyond its connection.
const memoryTarget = 300

// footprint is the memory of a process: the bytes of live objects after a collection, and the
// resident memory.
type footprint struct{ heap, resident int64 }

// measureMemory registers holders in batches on existing connections, and compares the memory
// before and after.
func measureMemory(ctx context.Context, b *bench) ([]row, error) {
	const connections = 100
	holders := either(b, 1_000_000, 200_000)
	var before, after footprint
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		// The interval is longer than the measurement, so that no beat is due.
		ours, err := b.leasesvc(ctx, cluster, fmt.Sprintf("--max-sessions=%d", holders+connections), noRegistrationLimit,
			"--heartbeat-interval=1m", "--heartbeat-grace-period=10m", "--lease-duration=10m")
		if err != nil {
			return err
		}
		defer ours.Stop()
		streams, leave, err := openStreams(ctx, ours.GRPC, connections)
		defer leave()
		if err != nil {
			return err
		}
		if before, err = footprintOf(ctx, ours); err != nil {
			return err
		}
		if err := fill(ctx, streams, holders/connections); err != nil {
			return err
		}
		if kept, err := sessionsOf(ctx, ours, "alive"); err != nil || kept < holders {
			return errors.Join(fmt.Errorf("%d sessions are alive, want %d", kept, holders), err)
		}
		after, err = footprintOf(ctx, ours)
		return err
	})
	if err != nil {
		return nil, err
	}
	heap, resident := (after.heap-before.heap)/int64(holders), (after.resident-before.resident)/int64(holders)
	return []row{{
		what:   fmt.Sprintf("memory of each of %s holders beyond the %d connections that carry them", thousands(float64(holders)), connections),
		target: fmt.Sprintf("≤ %d bytes", memoryTarget),
		ours:   fmt.Sprintf("%d bytes on the heap; resident %d, with what Go's collector keeps free", heap, resident),
		beside: fmt.Sprintf("the process before: heap %d MiB, resident %d MiB", before.heap>>20, before.resident>>20),
		missed: heap > memoryTarget,
	}}, nil
}

// openStreams opens connections with one stream and one holder each.
func openStreams(ctx context.Context, address string, connections int) (streams []*stream, leave func(), err error) {
	var open []*grpc.ClientConn
	leave = func() {
		for _, connection := range open {
			_ = connection.Close()
		}
	}
	for i := range connections {
		connection, err := dial(address)
		if err != nil {
			return nil, leave, err
		}
		open = append(open, connection)
		s, err := openStream(ctx, connection, holdersNamed("node", fmt.Sprintf("idle-%d", i), 1))
		if err != nil {
			return nil, leave, err
		}
		streams = append(streams, s)
	}
	return streams, leave, nil
}

// fill registers the same number of holders on each stream.
func fill(ctx context.Context, streams []*stream, holders int) error {
	var group errgroup.Group
	for i, s := range streams {
		group.Go(func() error { return s.registerAll(ctx, holdersNamed("node", fmt.Sprintf("bench-%d", i), holders)) })
	}
	return group.Wait()
}

// footprintOf reads the memory after the process has settled and collected its garbage.
func footprintOf(ctx context.Context, server *server.Server) (footprint, error) {
	pause(ctx, 2*time.Second)
	var f footprint
	for range 2 { // objects with a finalizer need a second collection
		profile, err := fetch(ctx, "http://"+server.Admin+"/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			return footprint{}, err
		}
		if f.heap, err = heapIn(profile); err != nil {
			return footprint{}, err
		}
	}
	var err error
	f.resident, err = server.Process().Resident()
	return f, err
}

// heapIn reads the bytes of allocated objects from a heap profile in text.
func heapIn(profile string) (int64, error) {
	_, rest, found := strings.Cut(profile, "# HeapAlloc = ")
	if !found {
		return 0, errors.New("the heap profile says nothing of HeapAlloc")
	}
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseInt(number, 10, 64)
}
