package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestWatch_ReturnsExistingSessionsThenChangesOfItsClasses(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
		hold, err := ctl.BeginRelease(t.Context(), node("b", "1"), 0, "")
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

// A session that is not selected any more is Deleted for a watcher that has it, and for no other.
func TestWatch_SelectsStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("silent", "1"), agent("beats"))
		suspect := sessioncontroller.Selection{States: []session.State{session.Suspect}}
		sub := watchSelected(t, ctl, suspect)
		defer sub.Close()
		expect := func(what string, want ...string) {
			t.Helper()
			register(t, ctl, agent("beats"))
			expectNames(t, what, drain(t, sub), want...)
		}
		expect("while it is alive")
		sleepAndBeat := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second)
				register(t, ctl, agent("beats"))
			}
		}
		sleepAndBeat(26 * time.Second)
		expect("when it is suspect", "+silent")
		since := position(t, sub)
		register(t, ctl, node("silent", "1"))
		expect("when it is alive again", "-silent")
		register(t, ctl, node("silent", "2"))
		expect("after a change that is not selected")

		resumed, err := ctl.Watch(t.Context(), suspect, since)
		if err != nil {
			t.Fatal(err)
		}
		defer resumed.Close()
		expectNames(t, "resumed after it was suspect", drain(t, resumed), "-silent", "|")
	})
}

// A bookmark names a shard once its sessions were sent, also if the shard comes later.
func TestWatch_BookmarksSayWhichShardsAreComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		endTerm := holdShard(t, ctl, 1, 9, session.Silence{Holder: node("old", "1"), For: time.Minute})
		sub, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, sessioncontroller.Version{})
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		expect := func(what string, want ...change) {
			t.Helper()
			if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		added := func(name string) change {
			return change{Type: sessioncontroller.Added, Name: name, State: session.Expired, Write: writeback.Pending}
		}
		bookmark := func(shards string) change { return change{Type: sessioncontroller.Bookmark, Shards: shards} }
		expect("at the start", added("old"), bookmark("[0 1]"))
		defer holdShard(t, ctl, 2, 10, session.Silence{Holder: node("late", "1"), For: time.Minute})()
		expect("after another shard", added("late"), bookmark("[0 1 2]"))
		endTerm()
		expect("after the loss of a shard", change{Type: sessioncontroller.Deleted, Name: "old", ShardLost: true}, bookmark("[0 2]"))
		defer holdShard(t, ctl, 1, 12, session.Silence{Holder: node("old", "1"), For: time.Minute})()
		expect("after its return", added("old"), bookmark("[0 1 2]"))
		if e, err := sub.Bookmark(t.Context()); err != nil || e.InitialEnd || e.Shards.Epoch != 12 {
			t.Errorf("bookmark %+v, error %v; want one at epoch 12", e, err)
		}
	})
}

// A watcher that was away while a shard left and came back learns which sessions it has no more:
// the bookmark names the shard.
func TestWatch_ResumedAfterAShardCameBackHasNoSessionOfTheLastTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		endTerm := holdShard(t, ctl, 1, 9)
		registerIn(t, ctl, 1, node("gone", "1"))
		registerIn(t, ctl, 1, node("stays", "1"))
		sub := watch(t, ctl, nil)
		since := position(t, sub)
		sub.Close()
		endTerm()
		lost, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, since)
		if err != nil {
			t.Fatal(err)
		}
		defer lost.Close()
		for _, c := range drain(t, lost) {
			if c.Type == sessioncontroller.Deleted && !c.ShardLost {
				t.Errorf("%+v while the shard is missing, want it to stand", c)
			}
		}
		defer holdShard(t, ctl, 1, 11)()
		registerIn(t, ctl, 1, node("stays", "1"))
		resumed, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, since)
		if err != nil {
			t.Fatal(err)
		}
		defer resumed.Close()
		has := map[string]bool{"gone": true, "stays": true}
		for _, c := range drain(t, resumed) {
			switch {
			case c.Type == sessioncontroller.Bookmark && c.Shards != "[0 1]":
				t.Errorf("bookmark of %s", c.Shards)
			case c.Type == sessioncontroller.Deleted && !c.ShardLost:
				delete(has, c.Name)
			case c.Type == sessioncontroller.Added:
				has[c.Name] = true
			}
		}
		if has["gone"] || !has["stays"] {
			t.Errorf("the watcher has %v, want stays only", has)
		}
	})
}

func TestNext_WaitsAndEndsWithTheController(t *testing.T) {
	t.Parallel()
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
				for err == nil && events[0].Type != sessioncontroller.Added {
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
	t.Parallel()
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
	var waits []time.Duration
	listing := time.Now()
	for ctx.Err() == nil {
		begin := time.Now()
		register(t, ctl, node("node-7", "1"))
		waits = append(waits, time.Since(begin))
	}
	// On a busy machine everything takes longer, the list as well; and some batches wait for a
	// turn.
	took := time.Since(listing)
	slices.Sort(waits)
	if seen := <-read; seen != holders+1 {
		t.Errorf("%d events, want %d sessions and a bookmark", seen, holders)
	}
	if n := len(waits); n < 20 || waits[n*9/10] > took/20 {
		t.Errorf("of %d batches during a list of %v, a tenth waited %v and longer", n, took, waits[n*9/10])
	}
}
