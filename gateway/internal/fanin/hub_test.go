package fanin_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
)

type item struct{ name, state string }

type message = fanin.Message[item]

var (
	errDown   = errors.New("down")
	errTooOld = errors.New("version too old")
)

// fixture is a Hub and its fake sources. Each stream sends what open returns for it and what report
// adds, until cut ends it.
type fixture struct {
	t   *testing.T
	hub *fanin.Hub[item]

	mu      sync.Mutex // guards the fields below
	members []term.Member
	changed chan struct{}
	open    func(id, version string) ([]message, error)
	opened  []string // each attempt as "id version"
	streams map[chan message]struct{}
	// closing is how long a stream takes to end with its context.
	closing time.Duration
}

// newReplicas runs a Hub over replicas in a bubble, until the test ends.
func newReplicas(t *testing.T, open func(id, version string) ([]message, error), ids ...string) *fixture {
	t.Helper()
	f := newFixture(t, open, ids...)
	f.run(merge.ViewConfig[item]{Same: func(a, b item) bool { return a == b }})
	return f
}

// newTerm runs a Hub over the holder of a term. Its streams report these items as "new".
func newTerm(t *testing.T, names ...string) *fixture {
	t.Helper()
	f := newFixture(t, reports(names...), "")
	f.run(merge.ViewConfig[item]{
		Ownership: merge.Exclusive, Ended: func(last item) item { return item{name: last.name, state: "ended"} },
	})
	return f
}

func newFixture(t *testing.T, open func(id, version string) ([]message, error), ids ...string) *fixture {
	f := &fixture{t: t, open: open, changed: make(chan struct{}), streams: map[chan message]struct{}{}}
	for _, id := range ids {
		f.members = append(f.members, term.Member{ID: id, Service: "leasesvc", GRPCAddress: id + ":1"})
	}
	return f
}

// run starts the Hub and returns what stops it.
func (f *fixture) run(view merge.ViewConfig[item]) (stop func()) {
	f.t.Helper()
	view.Key = func(i item) (string, int64) { return i.name, 1 }
	f.hub = fanin.NewHub(fanin.Config[item]{
		Sources: f.sources, Open: f.stream, SilenceTimeout: time.Second, View: view,
		VersionTooOld: func(err error) bool { return errors.Is(err, errTooOld) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.hub.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run() = %v, want nil", err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) sources() ([]term.Member, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members, f.changed
}

func (f *fixture) stream(ctx context.Context, source term.Member, version string) (fanin.Stream[item], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, source.ID+" "+version)
	first, err := f.open(source.ID, version)
	if err != nil {
		return nil, err
	}
	messages := make(chan message, 100)
	for _, m := range first {
		messages <- m
	}
	f.streams[messages] = struct{}{}
	return func() (message, error) {
		select {
		case m, open := <-messages:
			if !open {
				return m, errDown
			}
			return m, nil
		case <-ctx.Done():
			time.Sleep(f.closing)
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.streams, messages)
			return message{}, ctx.Err()
		}
	}, nil
}

// report sends a message on all streams.
func (f *fixture) report(kind fanin.Kind, name, state string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for stream := range f.streams {
		stream <- message{Kind: kind, Item: item{name: name, state: state}}
	}
}

// cut ends all streams. The next ones are opened by open, unless it is nil.
func (f *fixture) cut(open func(id, version string) ([]message, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if open != nil {
		f.open = open
	}
	for stream := range f.streams {
		close(stream)
		delete(f.streams, stream)
	}
}

// setMembers replaces the members and announces the change.
func (f *fixture) setMembers(members []term.Member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = members
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fixture) attempts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.opened)
}

func (f *fixture) openStreams() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.streams)
}

func (f *fixture) checkStreams(want int, when string) {
	f.t.Helper()
	if got := f.openStreams(); got != want {
		f.t.Errorf("%d streams %s, want %d", got, when, want)
	}
}

// reports returns an open whose streams contain these items.
func reports(names ...string) func(string, string) ([]message, error) {
	return func(string, string) ([]message, error) {
		var messages []message
		for _, name := range names {
			messages = append(messages, message{Kind: fanin.Put, Item: item{name: name, state: "new"}})
		}
		return append(messages, message{Kind: fanin.Bookmark}), nil
	}
}

// reportsOwn is an open whose streams contain one item, which is named after the replica.
func reportsOwn(id, _ string) ([]message, error) { return reports("of-"+id)("", "") }

func fails(string, string) ([]message, error) { return nil, errDown }

// silent is an open whose streams report nothing.
func silent(string, string) ([]message, error) { return nil, nil }

// client keeps what a reader takes.
type client struct {
	t         *testing.T
	reader    *fanin.Reader[item]
	events    map[string]string // the last kind and state of each item
	items     map[string]string
	bookmarks int
	missing   []fanout.Failure // of the last bookmark
}

func (f *fixture) join() *client {
	c := &client{
		t: f.t, events: map[string]string{}, items: map[string]string{},
		reader: f.hub.Join(func(item) bool { return true }),
	}
	f.t.Cleanup(c.reader.Close)
	return c
}

var kinds = map[merge.EventType]string{merge.Added: "added", merge.Modified: "modified", merge.Removed: "removed"}

func (c *client) next(ctx context.Context) error {
	batch, err := c.reader.Next(ctx)
	if err != nil {
		return err
	}
	for _, event := range batch.Events {
		c.events[event.Item.name] = kinds[event.Type] + " " + event.Item.state
		if delete(c.items, event.Item.name); event.Type != merge.Removed {
			c.items[event.Item.name] = event.Item.state
		}
	}
	if batch.Bookmark {
		c.bookmarks++
		c.missing = batch.Missing
	}
	return nil
}

// take takes everything within a time.
func (c *client) take(within time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	var err error
	for err == nil {
		err = c.next(ctx)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		c.t.Fatalf("Next() = %v", err)
	}
}

// checkEvents takes everything within a time and compares the last event of each item.
func (c *client) checkEvents(within time.Duration, want map[string]string) {
	c.t.Helper()
	c.take(within)
	if diff := cmp.Diff(want, c.events); diff != "" {
		c.t.Errorf("events (-want +got):\n%s", diff)
	}
	clear(c.events)
}

// untilBookmark takes everything up to the next bookmark.
func (c *client) untilBookmark() {
	c.t.Helper()
	for before := c.bookmarks; c.bookmarks == before; {
		if err := c.next(c.t.Context()); err != nil {
			c.t.Fatalf("Next() = %v", err)
		}
	}
}

func (c *client) checkMissing(want ...string) {
	c.t.Helper()
	var got []string
	for _, failure := range c.missing {
		got = append(got, failure.Member.ID+": "+failure.Err.Error())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestHub_StreamsAreOpenWhileThereAreReadersAndForLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		time.Sleep(time.Hour)
		f.checkStreams(0, "before the first reader")

		first, second := f.hub.Join(func(item) bool { return true }), f.join()
		second.untilBookmark()
		if len(second.items) != 2 {
			t.Errorf("items %v, want one of each replica", second.items)
		}
		second.checkMissing()
		first.Close()
		time.Sleep(time.Hour)
		f.checkStreams(2, "while there is a reader")
	})
}

func TestHub_LingerEndsAndTheViewStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]*fixture{"replicas": newReplicas(t, reportsOwn, "a"), "term": newTerm(t, "of-a")} {
			readers := []*fanin.Reader[item]{f.hub.Join(func(item) bool { return true }), f.hub.Join(func(item) bool { return true })}
			for _, reader := range readers {
				if _, err := reader.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			f.checkStreams(1, name+" for two readers")
			for _, reader := range readers {
				reader.Close()
			}
			time.Sleep(fanin.Linger - time.Second)
			f.checkStreams(1, name+" in Linger")
			time.Sleep(7 * time.Second)
			f.checkStreams(0, name+" after Linger")

			f.cut(reports("other"))
			f.join().checkEvents(time.Second, map[string]string{"other": "added new"})
			if attempts := len(f.attempts()); attempts != 2 {
				t.Errorf("%s: %d streams were opened, want 2", name, attempts)
			}
		}
	})
}

// A reader that joins while old streams end must not take from the old view: it would take the
// items twice.
func TestHub_ReaderThatJoinsWhileStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []*fixture{newReplicas(t, reportsOwn, "a"), newTerm(t, "of-a")} {
			f.closing = 10 * time.Second
			first := f.hub.Join(func(item) bool { return true })
			if _, err := first.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			first.Close()
			time.Sleep(fanin.Linger + 6*time.Second)

			second := f.join()
			second.checkEvents(time.Second, map[string]string{})
			if second.bookmarks != 0 {
				t.Error("a bookmark before the new stream is open")
			}
			second.checkEvents(30*time.Second, map[string]string{"of-a": "added new"})
		}
	})
}

func TestHub_ResumesUnlessTheVersionIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := 0
		f := newReplicas(t, func(string, string) ([]message, error) {
			if streams++; streams == 3 {
				return nil, errTooOld
			}
			return []message{
				{Kind: fanin.Put, Item: item{name: "x"}, Version: "v1"}, {Kind: fanin.Bookmark, Version: "v1"},
			}, nil
		}, "a")
		f.join().untilBookmark()
		for range 2 {
			f.cut(nil)
			time.Sleep(time.Second)
		}
		if diff := cmp.Diff([]string{"a ", "a v1", "a v1", "a "}, f.attempts()); diff != "" {
			t.Errorf("streams opened (-want +got):\n%s", diff)
		}
	})
}

func TestHub_PausesOfReplicasGrowToTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, func(id, version string) ([]message, error) {
			if id == "b" {
				return nil, errDown
			}
			return reportsOwn(id, version)
		}, "a", "b")
		c := f.join()
		c.untilBookmark()
		c.checkMissing("b: down")
		time.Sleep(5 * time.Minute)
		if attempts := len(f.attempts()); attempts < 20 || attempts > 70 {
			t.Errorf("%d attempts in 5 minutes, want one in ten seconds", attempts)
		}
	})
}

func TestHub_SilenceBeforeTheBookmarkIsAFailure(t *testing.T) {
	const message = "rpc error: code = Unavailable desc = it stopped before it had reported everything"
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, func(id, version string) ([]fanin.Message[item], error) {
			messages, err := reportsOwn(id, version)
			if id == "b" {
				messages = messages[:1]
			}
			return messages, err
		}, "a", "b")
		c := f.join()
		joined := time.Now()
		c.untilBookmark()
		if waited := time.Since(joined); waited != time.Second || len(c.items) != 2 {
			t.Errorf("waited %s and took %v, want both items after the timeout of a second", waited, c.items)
		}
		c.checkMissing("b: " + message)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t)
		f.cut(silent)
		joined := time.Now()
		var none fanin.NoSourceError
		if err := f.join().next(t.Context()); !errors.As(err, &none) || none.Failures[0].Err.Error() != message || time.Since(joined) != time.Second {
			t.Errorf("Next() = %v after %s, want silence after a second", err, time.Since(joined))
		}
	})
}

func TestHub_NoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, f := range map[int]*fixture{2: newReplicas(t, fails, "a", "b"), 1: newTerm(t)} {
			f.cut(fails)
			for range 2 {
				var none fanin.NoSourceError
				err := f.join().next(t.Context())
				if !errors.As(err, &none) || len(none.Failures) != want || !errors.Is(none.Failures[0].Err, errDown) {
					t.Errorf("Next() = %v, want NoSourceError with %d failures", err, want)
				}
			}
		}
	})
}

func TestHub_ReplicaThatLeftIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		c := f.join()
		c.untilBookmark()
		f.setMembers(f.members[:1])
		c.untilBookmark()
		c.checkMissing()
		synctest.Wait()
		f.checkStreams(1, "after b left")
	})
}

func TestHub_BookmarksComeAtAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []*fixture{newReplicas(t, reportsOwn, "a"), newTerm(t, "of-a")} {
			c := f.join()
			c.take(time.Minute)
			if c.bookmarks < 11 {
				t.Errorf("%d bookmarks in a minute, want one in five seconds", c.bookmarks)
			}
			c.checkMissing()
		}
	})
}

func TestHub_StopEndsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, reportsOwn, "a")
		stop := f.run(merge.ViewConfig[item]{})
		c := f.join()
		c.untilBookmark()
		stop()
		var err error
		for err == nil {
			err = c.next(t.Context())
		}
		if !errors.Is(err, fanin.ErrStopped) {
			t.Errorf("Next() = %v, want %v", err, fanin.ErrStopped)
		}
	})
}

func TestHub_SlowReaderSkipsStatesButNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a", "b")
		slow, fast := f.join(), f.join()
		slow.checkEvents(time.Second, map[string]string{"a": "added new", "b": "added new"})
		for _, state := range []string{"1", "2", "3"} {
			f.report(fanin.Put, "a", state)
			fast.take(time.Second)
		}
		f.report(fanin.Put, "x", "never seen by the slow reader")
		fast.take(time.Second)
		f.report(fanin.Remove, "x", "repaired")
		f.report(fanin.Remove, "b", "repaired")
		fast.take(time.Second)

		slow.checkEvents(time.Second, map[string]string{"a": "modified 3", "b": "removed repaired"})
		if diff := cmp.Diff(slow.items, fast.items); diff != "" {
			t.Errorf("items of the slow and the fast reader (-slow +fast):\n%s", diff)
		}
	})
}

func TestTerm_ReaderGetsAllThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a", "b")
		c := f.join()
		c.checkEvents(time.Second, map[string]string{"a": "added new", "b": "added new"})
		if c.bookmarks != 1 {
			t.Errorf("%d bookmarks, want one", c.bookmarks)
		}
		c.checkMissing()
		f.report(fanin.Put, "a", "changed")
		f.report(fanin.Put, "c", "new")
		c.checkEvents(time.Second, map[string]string{"a": "modified changed", "c": "added new"})
		f.report(fanin.Remove, "b", "repaired")
		c.checkEvents(time.Second, map[string]string{"b": "removed repaired"})
		f.report(fanin.Put, "b", "again")
		c.checkEvents(time.Second, map[string]string{"b": "added again"})
		f.report(fanin.Put, "", "without a name")
		c.checkEvents(time.Second, map[string]string{})
		f.report(fanin.PutAll, "d", "new")
		c.checkEvents(time.Second, map[string]string{"d": "added new"})
	})
}

func TestTerm_NextHolderReplacesTheItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a", "b")
		c := f.join()
		c.take(2 * time.Second)
		clear(c.events)

		f.cut(reports("b", "c"))
		c.checkEvents(time.Second, map[string]string{"a": "removed ended", "b": "added new", "c": "added new"})
		if c.bookmarks != 2 {
			t.Errorf("%d bookmarks, want one of each holder", c.bookmarks)
		}
		c.checkMissing()
	})
}

func TestTerm_ItemsStayWithoutAHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a")
		c := f.join()
		c.take(2 * time.Second)
		clear(c.events)

		f.cut(fails)
		c.checkEvents(time.Second, map[string]string{})
		c.checkMissing(": down")
		before := c.bookmarks
		c.checkEvents(time.Minute, map[string]string{})
		if c.bookmarks < before+12 {
			t.Errorf("%d bookmarks in a minute, want one in five seconds", c.bookmarks-before)
		}

		f.cut(reports("a"))
		c.checkEvents(3*time.Second, map[string]string{"a": "added new"})
		c.checkMissing()
	})
}

// A reader that joins while a new holder reports gets what is known, and not the failure before.
func TestTerm_FailureEndsWithTheNextStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a")
		c := f.join()
		c.take(2 * time.Second)
		f.cut(fails)
		c.take(time.Second)
		f.cut(silent)
		for f.openStreams() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		late := f.join()
		if err := late.next(t.Context()); err != nil || len(late.items) != 1 || late.bookmarks != 0 {
			t.Errorf("Next() = %v with %v, want the known item", err, late.items)
		}
	})
}

func TestTerm_PausesGrowAndEndWhenTheReplicasChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a")
		c := f.join()
		c.take(2 * time.Second)
		f.cut(fails)
		c.take(time.Minute)
		if attempts := len(f.attempts()); attempts < 20 || attempts > 70 {
			t.Errorf("%d attempts in a minute, want one in one to three seconds", attempts)
		}
		f.cut(reports("a"))
		f.setMembers(f.members)
		synctest.Wait()
		f.checkStreams(1, "at once after a change of the replicas")
	})
}

// A stream that breaks after each bookmark must not be opened in a tight loop.
func TestTerm_BreakingStreamsAreOpenedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTerm(t, "a")
		c := f.join()
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			c.take(10 * time.Millisecond)
			f.cut(nil)
		}
		if attempts := len(f.attempts()); attempts > 90 {
			t.Errorf("%d attempts in ten seconds", attempts)
		}
		c.checkMissing()
	})
}
