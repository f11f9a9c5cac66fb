package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/bench/internal/child"
	"github.com/trivet-dev/trivet/internal/devcluster"
)

// memoryTarget is how many bytes a holder may take beyond its connection.
const memoryTarget = 300

// footprint is what a process takes: the bytes of living objects after a collection, and what the kernel keeps for it.
type footprint struct{ heap, resident int64 }

// measureMemory introduces holders in batches on connections that are there before, and compares.
func measureMemory(ctx context.Context, b *bench) ([]row, error) {
	const connections = 100
	holders := either(b, 1_000_000, 200_000)
	var before, after footprint
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		// Nobody has to beat while memory is read, and no collection of this process's own choice comes between.
		ours, err := b.leasesvc(ctx, cluster, fmt.Sprintf("--max-sessions=%d", holders+connections),
			"--heartbeat-interval=1m", "--heartbeat-grace-period=10m", "--lease-duration=10m")
		if err != nil {
			return err
		}
		defer ours.Stop()
		idle, err := summon(plan{Address: ours.GRPC, Class: "node", Connections: connections, Streams: 1, Holders: 1})
		if err != nil {
			return err
		}
		defer idle.dismiss()
		if before, err = footprintOf(ctx, ours); err != nil {
			return err
		}
		full, err := summon(plan{Address: ours.GRPC, Class: "node", Connections: connections, Streams: 1, Holders: holders / connections})
		if err != nil {
			return err
		}
		defer full.dismiss()
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

// footprintOf lets the process settle and collect its garbage first.
func footprintOf(ctx context.Context, leg *child.Leg) (footprint, error) {
	pause(ctx, 2*time.Second)
	var f footprint
	for range 2 { // what has a finalizer goes with the second collection
		profile, err := fetch(ctx, "http://"+leg.Admin+"/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			return footprint{}, err
		}
		if f.heap, err = heapIn(profile); err != nil {
			return footprint{}, err
		}
	}
	var err error
	f.resident, err = leg.Resident()
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
