package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
)

// standForTerms runs internal/term as Trivet's services do, at its defaults.
func (s seat) standForTerms(ctx context.Context, h report) error {
	client, err := s.etcd()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	candidate, err := term.New(client, term.Config{
		Member: term.Member{ID: s.ID, Service: "bench", Cluster: s.Contest, StartTime: time.Now()},
		Shards: s.Shards,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	go announce(ctx, candidate, h)
	return candidate.Run(ctx, func(ctx context.Context, t *term.Term) error {
		h.act(ctx, t.Shard())
		return nil
	})
}

// announce says when the candidate has joined.
func announce(ctx context.Context, candidate *term.Candidate, h report) {
	for candidate.Check() != nil && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	h.say(ready, 0)
}
