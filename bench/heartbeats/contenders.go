package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// contender is a server with its own streamSet of heartbeats, and the cost of these heartbeats.
type contender struct {
	name string
	pid  int
	plan plan
	cost cost
	*loadProcess
}

// runContenders starts leasesvc, the bare echo and etcd, opens a streamSet for each, and lets them
// run in turn, so that other load on the machine affects all of them equally. It returns them in
// this order.
func (b *bench) runContenders(ctx context.Context, p plan, turns int, turn order) ([]*contender, error) {
	var contenders []*contender
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		ours, err := b.leasesvc(ctx, cluster, shortInterval)
		if err != nil {
			return err
		}
		defer ours.Stop()
		bare, bareAddress, err := startEcho(b)
		if err != nil {
			return err
		}
		defer bare.Kill()
		etcd, etcdAddress, err := b.bareEtcd()
		if err != nil {
			return err
		}
		defer etcd.Kill()
		contenders = []*contender{
			{name: "leasesvc", pid: ours.Process().PID(), plan: p.at(ours.GRPC)},
			{name: "bare echo", pid: bare.PID(), plan: p.at(bareAddress)},
			{name: "etcd LeaseKeepAlive", pid: etcd.PID(), plan: p.at(etcdAddress)},
		}
		contenders[2].plan.KeepAlive = true
		return takeTurns(ctx, contenders, turns, turn)
	})
	for _, c := range contenders {
		b.progress("%s: %v", c.name, c.cost)
	}
	return contenders, err
}

func (p plan) at(address string) plan {
	p.Address = address
	return p
}

func takeTurns(ctx context.Context, contenders []*contender, turns int, turn order) error {
	for _, c := range contenders {
		var err error
		if c.loadProcess, err = startLoad(c.plan); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer c.stopLoad()
	}
	for range turns {
		for _, c := range contenders {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := c.take(turn); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

// take sends beats and adds their cost. It first sends some beats that do not count, so that work
// left from the previous turn is not included.
func (c *contender) take(turn order) error {
	if _, err := c.beat(order{For: max(turn.Pace, turn.For/4), Pace: turn.Pace}); err != nil {
		return err
	}
	spent, err := spentOn(func() (int64, error) { return c.beat(turn) }, c.pid)
	c.cost = c.cost.plus(spent)
	c.cost.anew = c.anew
	return err
}

var errUnanswered = errors.New("no heartbeat was answered")

// spentOn returns the cost of answered heartbeats in processes.
func spentOn(beats func() (int64, error), pids ...int) (cost, error) {
	var c cost
	begin := time.Now()
	cpu, err := childprocess.Spent(func() (err error) {
		c.beats, err = beats()
		return err
	}, pids...)
	c.cpu, c.in = cpu, time.Since(begin)
	if err == nil && c.beats == 0 {
		err = errUnanswered
	}
	return c, err
}
