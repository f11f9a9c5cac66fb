package leasesvc

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes/fake"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// newSessions is a service whose sessions of all shards are kept for the length of the test, without a server before it: what a
// stream answers is asked from connections.
func newSessions(t testing.TB, change func(*Config)) *Service {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	member := term.Member{ID: "replica-1", Service: ServiceName, GRPCAddress: "here:7601"}
	s, err := New(cfg, Deps{
		Member: member, Kube: fake.NewClientset(), Leadership: termtest.NewCandidate(member, cfg.Shards),
		Logger: slog.New(slog.DiscardHandler), LoopSelection: []string{"*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := sessioncontroller.New(sessioncontroller.Config{Classes: cfg.rules(), Shards: cfg.Shards, Limit: cfg.MaxSessions, Logger: slog.New(slog.DiscardHandler)})
	s.keeper.Store(k)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	term, lose := context.WithCancel(ctx)
	kept := make(chan error, cfg.Shards)
	for shard := range cfg.Shards {
		go func() { kept <- k.RunShard(heldshards.New(term, shard, 1)) }()
	}
	t.Cleanup(func() {
		lose()
		for range cfg.Shards {
			if err := <-kept; err != nil {
				t.Error(err)
			}
		}
		cancel()
		<-k.Done()
	})
	for all, err := k.Silences(ctx); len(all) < cfg.Shards; all, err = k.Silences(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	return s
}

// line is a stream that carries nothing.
type line struct {
	grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]
	ctx context.Context
}

func (l line) Context() context.Context { return l.ctx }

// open returns a connection as StreamHeartbeats makes it.
func (s *Service) open(t testing.TB) *connection {
	return &connection{
		server: s.server, sessions: s.keeper.Load(), wire: line{ctx: t.Context()}, exchange: sessioncontroller.NewBatch(),
	}
}

// say has the connection answer one message.
func say(t testing.TB, c *connection, request *leasev1.StreamHeartbeatsRequest) *leasev1.StreamHeartbeatsResponse {
	t.Helper()
	if err := c.respond(request); err != nil {
		t.Fatal(err)
	}
	return &c.answer.response
}

// crowd are n holders with numbers from first on.
func crowd(first, n int) []*leasev1.Holder {
	holders := make([]*leasev1.Holder, n)
	for i := range holders {
		holders[i] = &leasev1.Holder{Class: NodeClass, Name: fmt.Sprintf("node-%d", first+i), BootId: "7c1e6f0e-boot"}
	}
	return holders
}
