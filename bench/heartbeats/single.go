package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// Targets of a heartbeat on its own stream.
const (
	steadyOverEcho    = 1.15
	saturatedOverEcho = 1.6
	putsOverSteady    = 15.0
)

// shortInterval lets holders send more heartbeats than nodes do.
const shortInterval = "--heartbeat-interval=1s"

// measureSteady compares the cost of a heartbeat in the server with 10,000 connections of one
// stream each, whose holder beats every second.
func measureSteady(ctx context.Context, b *bench) ([]row, error) {
	var puts cost
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) (err error) {
		puts, err = measurePuts(ctx, cluster, either(b, 10*time.Second, 4*time.Second))
		return err
	})
	if err != nil {
		return nil, err
	}
	contenders, err := b.runContenders(ctx, plan{Class: "node", Connections: 10_000, Streams: 1, Holders: 1},
		either(b, 6, 2), order{For: 4 * time.Second, Pace: time.Second})
	if err != nil {
		return nil, err
	}
	cheaper := puts.each() / contenders[0].cost.each()
	return []row{
		compare(contenders, "server CPU of a heartbeat, 10,000 connections × 1 stream at 1 s", steadyOverEcho),
		{
			what:   "the same, beside the Lease that a kubelet writes (PUT, 64 at a time, as fast as possible; kube-apiserver and etcd)",
			target: fmt.Sprintf("≥ %.0f × below", putsOverSteady),
			ours:   fmt.Sprintf("%.1f × below", cheaper), beside: puts.String(), missed: cheaper < putsOverSteady,
		},
	}, nil
}

// measureSaturated compares the same cost with few connections and as many heartbeats as possible.
func measureSaturated(ctx context.Context, b *bench) ([]row, error) {
	contenders, err := b.runContenders(ctx, plan{Class: "node", Connections: 16, Streams: 64, Holders: 1},
		either(b, 8, 3), order{For: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	return []row{
		compare(contenders, "server CPU of a heartbeat, 16 connections × 64 streams, as fast as possible", saturatedOverEcho),
	}, nil
}

// compare returns a row of leasesvc, the bare echo and etcd, in this order.
func compare(contenders []*contender, what string, most float64) row {
	ours, echo, etcd := contenders[0].cost, contenders[1].cost, contenders[2].cost
	ratio := ours.each() / echo.each()
	return row{
		what: what, target: fmt.Sprintf("≤ %.2f × the bare echo", most),
		ours: fmt.Sprintf("%v, %.2f ×", ours, ratio),
		beside: fmt.Sprintf("bare echo: %v; etcd LeaseKeepAlive: %v, %.2f ×",
			echo, etcd, etcd.each()/echo.each()),
		missed: ratio > most,
	}
}
