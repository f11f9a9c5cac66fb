package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// renewalsTarget is the required number of renewed holders per second.
const renewalsTarget = 1_000_000

// measureBatched sends batches of beats from four streams, the next one at each answer.
func measureBatched(ctx context.Context, b *bench) ([]row, error) {
	const holders = 256
	c := &contender{name: "leasesvc"}
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		ours, err := b.leasesvc(ctx, cluster, shortInterval)
		if err != nil {
			return err
		}
		defer ours.Stop()
		c.pid, c.plan = ours.Process().PID(), plan{Address: ours.GRPC, Class: "node", Connections: 4, Streams: 1, Holders: holders}
		return takeTurns(ctx, []*contender{c}, 1, order{For: either(b, 10*time.Second, 3*time.Second)})
	})
	if err != nil {
		return nil, err
	}
	rate := c.cost.perSecond() * holders
	return []row{{
		what:   "batched beats, 4 connections × 1 stream × 256 holders, as fast as possible, the sender on the same cores",
		target: fmt.Sprintf("≥ %s renewals/s", thousands(renewalsTarget)),
		ours:   fmt.Sprintf("%s renewals/s, %.3f µs of server CPU each", thousands(rate), c.cost.each()/holders),
		missed: rate < renewalsTarget,
	}}, nil
}
