package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
)

// runTerms runs internal/term with its defaults, as Trivet's services do.
func (c candidateConfig) runTerms(ctx context.Context, r report) error {
	client, err := c.etcd()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	candidate, err := term.New(client, term.Config{
		Member: term.Member{ID: c.ID, Service: "bench", Cluster: c.Group, StartTime: time.Now()},
		Shards: c.Shards,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	go announce(ctx, candidate, r)
	return candidate.Run(ctx, func(ctx context.Context, t *term.Term) error {
		r.act(ctx, t.Shard())
		return nil
	})
}

// announce reports when the candidate has joined.
func announce(ctx context.Context, candidate *term.Candidate, r report) {
	for candidate.Check() != nil && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	r.send(ready, 0)
}
