package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

// The targets of a heartbeat on a stream of its own.
const (
	steadyOverEcho    = 1.15
	saturatedOverEcho = 1.6
	putsOverSteady    = 15.0
)

// What leasesvc is told when it is sent more heartbeats than nodes would send.
const hurried = "--heartbeat-interval=1s"

// measureSteady compares what a heartbeat costs the server when 10,000 connections carry one stream each, whose holder beats
// every second. The contenders take turns, twice, and each has to open its connections anew.
func measureSteady(ctx context.Context, b *bench) ([]row, error) {
	const connections, pace = 10_000, time.Second
	var puts cost
	turns, each := either(b, 2, 1), either(b, 8*time.Second, 5*time.Second)
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) (err error) {
		puts, err = measurePuts(ctx, cluster, each)
		return err
	})
	if err != nil {
		return nil, err
	}
	contenders, err := b.contest(ctx, func(contenders []*contender) error {
		for range turns {
			for _, c := range contenders {
				crowd, err := gather(ctx, c.address, c.open, connections, 1)
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				err = c.charge(ctx, crowd, each, pace)
				crowd.disperse()
				if err != nil {
					return err
				}
				b.say("%s: %v so far", c.name, c.cost)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r := compare(contenders, "server CPU of a heartbeat, 10,000 connections × 1 stream at 1 s", steadyOverEcho)
	ours := contenders[0].cost
	cheaper := puts.each() / ours.each()
	return []row{r, {
		what:   "the same, beside the Lease that a kubelet writes (PUT, 64 at a time, as fast as it goes; kube-apiserver and etcd)",
		target: fmt.Sprintf("≥ %.0f × below", putsOverSteady),
		ours:   fmt.Sprintf("%.1f × below", cheaper), beside: puts.String(), missed: cheaper < putsOverSteady,
	}}, nil
}

// measureSaturated compares the same with few connections and as many heartbeats as go. The contenders take short turns.
func measureSaturated(ctx context.Context, b *bench) ([]row, error) {
	const connections, streams = 16, 64
	turns, each := either(b, 4, 2), either(b, 3*time.Second, 2*time.Second)
	contenders, err := b.contest(ctx, func(contenders []*contender) error {
		crowds := make([]*crowd, len(contenders))
		for i, c := range contenders {
			var err error
			if crowds[i], err = gather(ctx, c.address, c.open, connections, streams); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			defer crowds[i].disperse()
		}
		for range turns {
			for i, c := range contenders {
				if err := c.charge(ctx, crowds[i], each, 0); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []row{compare(contenders, "server CPU of a heartbeat, 16 connections × 64 streams, as fast as it goes", saturatedOverEcho)}, nil
}

// contest starts the contenders, leasesvc first, and calls compete.
func (b *bench) contest(ctx context.Context, compete func([]*contender) error) ([]*contender, error) {
	var contenders []*contender
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		ours, err := b.leasesvc(ctx, cluster, hurried)
		if err != nil {
			return err
		}
		defer ours.Stop()
		bare, bareAddress, err := startEcho(b)
		if err != nil {
			return err
		}
		defer bare.Kill()
		contenders = []*contender{
			{name: "leasesvc", address: ours.GRPC, pids: []int{ours.PID()}, open: holdersOf("node", 1)},
			{name: "bare echo", address: bareAddress, pids: []int{bare.PID()}, open: holdersOf("node", 1)},
		}
		etcd, etcdAddress, err := b.bareEtcd()
		if err != nil {
			return err
		}
		defer etcd.Kill()
		contenders = append(contenders, &contender{
			name: "etcd LeaseKeepAlive", address: etcdAddress, pids: []int{etcd.PID()}, open: keepAlive,
		})
		return compete(contenders)
	})
	return contenders, err
}

// compare makes a row of leasesvc, the bare echo and etcd, in this order.
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
