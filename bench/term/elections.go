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

// standForElections campaigns in one election for each shard, all under one session with the TTL of
// internal/term. It resigns, and closes the session, when ctx ends; it does not come back from a
// lost session.
func (s seat) standForElections(ctx context.Context, h report) error {
	client, err := s.etcd()
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
	for shard := range s.Shards {
		election := concurrency.NewElection(session, fmt.Sprintf("/%s/%d", s.Contest, shard))
		group.Go(func() error { return s.campaign(ctx, election, shard, h) })
	}
	go s.awaitQueue(ctx, client, h)
	return errors.Join(group.Wait(), session.Close())
}

func (s seat) campaign(ctx context.Context, election *concurrency.Election, shard int, h report) error {
	err := election.Campaign(ctx, s.ID)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("campaign for shard %d: %w", shard, err)
	}
	h.act(ctx, shard)
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), term.DefaultTTL)
	defer cancel()
	return election.Resign(resigning)
}

// awaitQueue says when this candidate stands in the queue of every election. Campaign does not
// tell, so the keys do.
func (s seat) awaitQueue(ctx context.Context, client *clientv3.Client, h report) {
	for ctx.Err() == nil {
		keys, err := client.Get(ctx, "/"+s.Contest+"/", clientv3.WithPrefix())
		if err != nil {
			continue
		}
		queued := 0
		for _, entry := range keys.Kvs {
			if string(entry.Value) == s.ID {
				queued++
			}
		}
		if queued == s.Shards {
			h.say(ready, 0)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
