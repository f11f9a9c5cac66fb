package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	// sweepTarget is the allowed time from the deadline of many sessions until the last of them is
	// counted as expired.
	sweepTarget = 100 * time.Millisecond
	sweepGrace  = 8 * time.Second
)

// measureSweep lets many holders beat once at the same time.
func measureSweep(ctx context.Context, b *bench) ([]row, error) {
	const connections, holders = 10, 100_000
	var found expiry
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		ours, err := b.leasesvc(ctx, cluster, noRegistrationLimit, "--heartbeat-interval=2s", fmt.Sprintf("--heartbeat-grace-period=%v", sweepGrace))
		if err != nil {
			return err
		}
		defer ours.Stop()
		streamSet, err := openStreamSet(ctx, ours.GRPC, plaintext(), (&sender{class: "node", holders: holders / connections}).open, connections, 1)
		if err != nil {
			return err
		}
		defer streamSet.close()
		found, err = expire(ctx, ours, streamSet, holders)
		return err
	})
	if err != nil {
		return nil, err
	}
	late := found.all.Sub(found.due)
	return []row{{
		what:   fmt.Sprintf("expiry of %s holders with simultaneous last beats: the last is noticed, after the first expiry", thousands(holders)),
		target: fmt.Sprintf("≤ %v", sweepTarget),
		ours:   fmt.Sprintf("%s; none before its expiry: %v", formatDuration(late), !found.early),
		beside: fmt.Sprintf("the beats took %s; read every %s", formatDuration(found.took), formatDuration(found.step)),
		missed: late > sweepTarget || found.early,
	}}, nil
}

// expiry has the times at which sessions expired, by their count.
type expiry struct {
	due   time.Time     // the first deadline
	all   time.Time     // when all were counted
	early bool          // whether some were counted before the first deadline
	took  time.Duration // from the first sent beat to the last answer
	step  time.Duration // the longest time between two reads
}

// expire sends the last beat of every holder and counts the expired sessions.
func expire(ctx context.Context, server *server.Server, streamSet *streamSet, holders int) (expiry, error) {
	begin := time.Now()
	var group errgroup.Group
	for _, beat := range streamSet.beats {
		group.Go(beat)
	}
	if err := group.Wait(); err != nil {
		return expiry{}, err
	}
	e := expiry{due: begin.Add(sweepGrace), took: time.Since(begin)}
	pause(ctx, time.Until(e.due.Add(-200*time.Millisecond)))
	for last := time.Now(); ; {
		expired, err := sessionsOf(ctx, server, "expired")
		if err != nil {
			return expiry{}, err
		}
		now := time.Now()
		e.step, last = max(e.step, now.Sub(last)), now
		switch {
		case expired == holders:
			e.all = now
			return e, nil
		case now.Before(e.due):
			e.early = e.early || expired > 0
		case now.After(e.due.Add(sweepGrace)):
			return expiry{}, errors.Join(fmt.Errorf("%d of %d have expired %v after their deadline", expired, holders, sweepGrace), ctx.Err())
		}
	}
}
