package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	// nodeInterval and nodeGrace are leasesvc's defaults for nodes.
	nodeInterval = 5 * time.Second
	nodeGrace    = 20 * time.Second
	// takeoverTarget is the time until all holders of a killed replica must be renewed.
	takeoverTarget = nodeInterval + nodeGrace
)

// takeover is the result of a kill.
type takeover struct {
	moved         int           // sessions of the killed replica
	renewed       time.Duration // until the other replica had all of them
	expired       int           // the largest number of sessions that counted as expired at any time
	wronglyMarked int           // Nodes that were marked Unknown
	written       int64         // Leases that Nodes wrote, because their beats were not acknowledged
}

// measureTakeover kills one of two replicas with many holders. Some of the holders are Nodes of the
// real kube-apiserver, whose health both replicas check.
func measureTakeover(ctx context.Context, b *bench) ([]row, error) {
	holders, nodes := either(b, 50_000, 10_000), either(b, 2000, 500)
	var found takeover
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		kube, err := administrator(cluster.RESTConfig())
		if err != nil {
			return err
		}
		if err := createNodes(ctx, kube, holderNames(nodes)); err != nil {
			return err
		}
		seen, err := watchVerdicts(ctx, kube)
		if err != nil {
			return err
		}
		defer seen.close()
		var replicas []*server.Server
		for range 2 {
			replica, err := b.leasesvc(ctx, cluster, "--loops=*,node-health")
			if err != nil {
				return err
			}
			defer replica.Stop()
			replicas = append(replicas, replica)
		}
		names := holderNames(holders)
		var written atomic.Int64
		leases := nodelease.NewWriter(kube)
		defer populate(ctx, replicas, names[:nodes], func(ctx context.Context, h agent.Holder) error {
			written.Add(1)
			return leases.Renew(ctx, h)
		})()
		defer populate(ctx, replicas, names[nodes:], nil)()
		if found, err = b.kill(ctx, replicas, holders); err != nil {
			return err
		}
		// A node that is wrongly judged silent is marked Unknown within this time.
		pause(ctx, takeoverTarget)
		found.wronglyMarked, found.written = seen.count(), written.Load()
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	return []row{{
		what: fmt.Sprintf("one of two replicas is killed with %s of %s holders, %s of them Nodes: sessions expired + Nodes marked Unknown",
			thousands(float64(found.moved)), thousands(float64(holders)), thousands(float64(nodes))),
		target: "0", ours: fmt.Sprintf("%d + %d", found.expired, found.wronglyMarked), missed: found.expired+found.wronglyMarked > 0,
	}, {
		what: "the same: until the other replica has renewed all of them", target: fmt.Sprintf("≤ %v (interval and TTL)", takeoverTarget),
		ours: formatDuration(found.renewed), missed: found.renewed > takeoverTarget,
	}, {
		what: "the same: Leases that Nodes wrote, from their start on", target: "≤ 2 % of the Nodes",
		ours: fmt.Sprint(found.written), missed: found.written > int64(nodes)/50,
	}}, nil
}

func holderNames(count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("bench-%06d", i)
	}
	return names
}

// populate starts agents that send beats for holders, and renew them in another way while no beat
// is acknowledged. It returns a function that stops them.
func populate(
	ctx context.Context, replicas []*server.Server, names []string, renew func(context.Context, agent.Holder) error,
) (leave func()) {
	const perAgent = 1000
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	var targets []string
	for _, replica := range replicas {
		targets = append(targets, replica.GRPC)
	}
	for begin := 0; begin < len(names); begin += perAgent {
		group.Go(func() error {
			var holders []agent.Holder
			for _, name := range names[begin:min(begin+perAgent, len(names))] {
				holders = append(holders, agent.Holder{Class: "node", Name: name, BootID: "boot"})
			}
			a, err := agent.New(agent.Config{
				Targets: targets, Holders: holders, Unacknowledged: renew,
				Dial: func(target string) (*grpc.ClientConn, error) { return dial(target) },
			})
			if err != nil {
				return err
			}
			return a.Run(ctx)
		})
	}
	return func() {
		cancel()
		_ = group.Wait() // the holders of a failed agent are found missing later
	}
}

// kill waits until all sessions exist and are stable, kills the first replica, and waits until the
// other one has all of them.
func (b *bench) kill(ctx context.Context, replicas []*server.Server, holders int) (takeover, error) {
	if err := awaitAlive(ctx, replicas, holders); err != nil {
		return takeover{}, err
	}
	pause(ctx, 2*nodeInterval)
	var t takeover
	var err error
	if t.moved, err = sessionsOf(ctx, replicas[0], "alive"); err != nil {
		return t, err
	}
	replicas[0].Kill()
	killed := time.Now()
	b.progress("killed a replica with %d sessions", t.moved)
	for time.Since(killed) < 2*takeoverTarget {
		alive, err := sessionsOf(ctx, replicas[1], "alive")
		if err != nil {
			return t, err
		}
		expired, err := sessionsOf(ctx, replicas[1], "expired")
		if err != nil {
			return t, err
		}
		t.expired = max(t.expired, expired)
		if alive == holders && t.renewed == 0 {
			t.renewed = time.Since(killed)
			b.progress("all are renewed after %v", t.renewed)
		}
		if t.renewed > 0 && time.Since(killed) > takeoverTarget+nodeInterval {
			return t, nil
		}
		pause(ctx, shortPause)
	}
	return t, errors.Join(fmt.Errorf("after %v not all sessions are renewed", 2*takeoverTarget), ctx.Err())
}

// awaitAlive waits until the replicas together have the number of sessions.
func awaitAlive(ctx context.Context, replicas []*server.Server, holders int) error {
	for end := time.Now().Add(2 * retryTimeout); ; {
		sum := 0
		for _, replica := range replicas {
			alive, err := sessionsOf(ctx, replica, "alive")
			if err != nil {
				return err
			}
			sum += alive
		}
		if sum == holders {
			return nil
		}
		if !sleepUntil(ctx, time.Now().Add(shortPause), end) {
			return fmt.Errorf("after %v %d of %d sessions are alive", 2*retryTimeout, sum, holders)
		}
	}
}
