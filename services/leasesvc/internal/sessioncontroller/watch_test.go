package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func TestWatch_ReturnsExistingSessionsThenChangesOfItsClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"), agent("x"))
		all, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, sessioncontroller.Version{})
		if err != nil {
			t.Fatal(err)
		}
		defer all.Close()
		agents, err := ctl.Watch(t.Context(), sessioncontroller.Selection{Classes: []bool{false, true}}, sessioncontroller.Version{})
		if err != nil {
			t.Fatal(err)
		}
		defer agents.Close()
		expectNames(t, "all at the start", drain(t, all), "+a", "+x", "|")
		expectNames(t, "agents at the start", drain(t, agents), "+x", "|")
		register(t, ctl, node("a", "2"), node("b", "1"), agent("y"))
		expectNames(t, "all", drain(t, all), "~a", "+b", "+y")
		expectNames(t, "agents", drain(t, agents), "+y")
	})
}

func TestWatch_SlowWatcherSkipsStatesButNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		sub := watch(t, ctl, nil)
		defer sub.Close()
		for boot := range 1000 {
			register(t, ctl, node("a", fmt.Sprint(boot)), node("b", fmt.Sprint(boot)))
		}
		register(t, ctl, node("a", "last"))
		expectNames(t, "after 2,001 changes", drain(t, sub), "+b", "+a")
	})
}

func TestWatch_ResumesAfterAnyVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"), node("b", "1"), node("c", "1"))
		first, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, sessioncontroller.Version{})
		if err != nil {
			t.Fatal(err)
		}
		start := versions(t, first)
		if bookmark := start[len(start)-1]; bookmark == (sessioncontroller.Version{}) || start[0] != (sessioncontroller.Version{}) {
			t.Errorf("versions %v at the start, want one on the bookmark only", start)
		}
		register(t, ctl, node("a", "2"))
		register(t, ctl, node("d", "1"))
		hold, err := ctl.BeginRelease(t.Context(), node("b", "1"), 0)
		if err != nil {
			t.Fatal(err)
		}
		ctl.CompleteRelease(hold)
		after := versions(t, first)
		first.Close()
		for name, c := range map[string]struct {
			since sessioncontroller.Version
			want  []string
		}{
			"the start":      {since: start[len(start)-1], want: []string{"~a", "+d", "-b", "|"}},
			"the takeover":   {since: after[0], want: []string{"+d", "-b", "|"}},
			"the new holder": {since: after[1], want: []string{"-b", "|"}},
			"the end":        {since: after[2], want: []string{"|"}},
		} {
			sub, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, c.since)
			if err != nil {
				t.Fatal(err)
			}
			expectNames(t, "after "+name, drain(t, sub), c.want...)
			sub.Close()
		}
		if _, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, sessioncontroller.Version{Revision: 1 << 40}); !errors.Is(err, sessioncontroller.ErrCompacted) {
			t.Errorf("a future version: error %v, want ErrCompacted", err)
		}
	})
}

func TestNext_WaitsAndEndsWithTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		stop := run(t, ctl)
		sub := watch(t, ctl, nil)
		got := make(chan error, 1)
		go func() {
			events, err := sub.Next(t.Context())
			if len(events) != 1 || events[0].Type != sessioncontroller.Added {
				t.Errorf("events %v, want one Added", events)
			}
			if err == nil {
				events, err = sub.Next(t.Context())
				for err == nil && events[0].Type == sessioncontroller.Deleted {
					events, err = sub.Next(t.Context())
				}
			}
			got <- err
		}()
		synctest.Wait()
		register(t, ctl, node("a", "1"))
		synctest.Wait()
		stop()
		if err := <-got; !errors.Is(err, sessioncontroller.ErrStopped) {
			t.Errorf("error %v, want ErrStopped", err)
		}
	})
}

// Batches are processed while a watcher lists many sessions.
func TestWatch_DoesNotDelayBatches(t *testing.T) {
	const holders = 100_000
	ctl := sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: holders, Logger: slog.New(slog.DiscardHandler)})
	defer run(t, ctl)()
	for i := 0; i < holders; i += 1000 {
		chunk := make([]session.Holder, 1000)
		for j := range chunk {
			chunk[j] = node(fmt.Sprintf("node-%d", i+j), "1")
		}
		register(t, ctl, chunk...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	read := make(chan int, 1)
	go func() {
		defer cancel()
		sub, err := ctl.Watch(ctx, sessioncontroller.Selection{}, sessioncontroller.Version{})
		seen := 0
		for err == nil {
			var events []sessioncontroller.Event
			if events, err = sub.Next(ctx); len(events) > 0 {
				if seen += len(events); events[len(events)-1].Type == sessioncontroller.Bookmark {
					break
				}
			}
		}
		read <- seen
	}()
	// The machine may be loaded, so a tenth of the batches may wait longer.
	var waits, long int
	for ctx.Err() == nil {
		begin := time.Now()
		register(t, ctl, node("node-7", "1"))
		if waits++; time.Since(begin) > 20*time.Millisecond {
			long++
		}
	}
	if seen := <-read; seen != holders+1 {
		t.Errorf("%d events, want %d sessions and a bookmark", seen, holders)
	}
	if waits < 20 || long > waits/10 {
		t.Errorf("%d of %d batches waited longer than 20 ms", long, waits)
	}
}
