package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/internal/term"
)

var errSessionLost = errors.New("the session was lost")

// runElections campaigns in one election for each shard, under one session with the TTL of
// internal/term. When ctx ends, it resigns and closes the session. It does not recover from a lost
// session.
func (c candidateConfig) runElections(ctx context.Context, r report) error {
	client, err := c.etcd()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(term.DefaultTTL/time.Second)))
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case <-session.Done():
			return errSessionLost
		case <-ctx.Done():
			return nil
		}
	})
	for shard := range c.Shards {
		election := concurrency.NewElection(session, fmt.Sprintf("/%s/%d", c.Group, shard))
		group.Go(func() error { return c.campaign(ctx, election, shard, r) })
	}
	go c.awaitQueue(ctx, client, r)
	return errors.Join(group.Wait(), session.Close())
}

func (c candidateConfig) campaign(ctx context.Context, election *concurrency.Election, shard int, r report) error {
	err := election.Campaign(ctx, c.ID)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("campaign for shard %d: %w", shard, err)
	}
	r.act(ctx, shard)
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), term.DefaultTTL)
	defer cancel()
	return election.Resign(resigning)
}

// awaitQueue reports when this candidate is in the queue of every election. It reads the keys,
// because Campaign does not report it.
func (c candidateConfig) awaitQueue(ctx context.Context, client *clientv3.Client, r report) {
	for ctx.Err() == nil {
		keys, err := client.Get(ctx, "/"+c.Group+"/", clientv3.WithPrefix())
		if err != nil {
			continue
		}
		queued := 0
		for _, entry := range keys.Kvs {
			if string(entry.Value) == c.ID {
				queued++
			}
		}
		if queued == c.Shards {
			r.send(ready, 0)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
