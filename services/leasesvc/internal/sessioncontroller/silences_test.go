package sessioncontroller_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func TestSilences_ListsSuspectAndExpiredHoldersByShard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		endTerm := holdShard(t, ctl, 1, 8)
		batch := sessioncontroller.NewBatch()
		batch.Registrations = []sessioncontroller.Registration{
			{Holder: node("n0", "1")}, {Holder: node("n1", "1")}, {Holder: node("n2", "1"), Shard: 1}, {Holder: agent("a1"), Shard: 1},
		}
		if err := ctl.Process(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		of := func(h session.Holder, silence time.Duration) session.Silence {
			return session.Silence{Holder: h, For: silence}
		}
		expect := func(what string, want map[int][]session.Silence) {
			t.Helper()
			if diff := cmp.Diff(want, silences(t, ctl)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		expect("at the start", map[int][]session.Silence{0: {}, 1: {}})
		time.Sleep(4 * time.Second)
		expect("a class with a short Suspect time", map[int][]session.Silence{0: {}, 1: {of(agent("a1"), 4*time.Second)}})
		time.Sleep(20 * time.Second)
		beat(t, ctl, batch.Results[0].Ref)
		time.Sleep(6 * time.Second)
		expect("a holder that beats is not listed", map[int][]session.Silence{
			0: {of(node("n1", "1"), 30*time.Second)}, 1: {of(agent("a1"), 30*time.Second), of(node("n2", "1"), 30*time.Second)},
		})
		endTerm()
		expect("after the end of a shard", map[int][]session.Silence{0: {of(node("n1", "1"), 30*time.Second)}})
	})
}

func TestSilences_ReturnsThoseThatRunShardWasGiven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		given := []session.Silence{{Holder: node("n1", "1"), For: 50 * time.Second}, {Holder: node("n2", "1"), For: 10 * time.Second}}
		go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(ctx, 2, 9), given...) }()
		synctest.Wait()
		want := map[int][]session.Silence{0: {}, 2: given[:1]}
		if diff := cmp.Diff(want, silences(t, ctl)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// One operation scans a large replica with one expired holder in a hundred.
func BenchmarkSilences(b *testing.B) {
	const holders = 100_000
	ctl := sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: holders, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go func() { _ = ctl.Run(ctx) }()
	var expired []session.Silence
	for i := range holders / 100 {
		expired = append(expired, session.Silence{Holder: node(fmt.Sprintf("expired-%d", i), "1"), For: time.Minute})
	}
	done := make(chan error, 1)
	go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(ctx, 0, 7), expired...) }()
	for !isHeld(b, ctl, 0) {
		time.Sleep(time.Millisecond)
	}
	for first := 0; first < holders-len(expired); first += 1000 {
		batch := sessioncontroller.NewBatch()
		for i := range min(1000, holders-len(expired)-first) {
			batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{Holder: node(fmt.Sprintf("node-%d", first+i), "1")})
		}
		if err := ctl.Process(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		found, err := ctl.Silences(ctx)
		if err != nil || len(found[0]) != len(expired) {
			b.Fatalf("%d silences, error %v", len(found[0]), err)
		}
	}
	cancel()
	<-done
}
