package fanin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/watchcache"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

type message = fanin.Message

var (
	errDown    = errors.New("down")
	errExpired = rpcerror.New(codes.OutOfRange, rpcerror.ResumeTokenExpiredReason, "too old")
)

// shardOf returns the shard that each replica of the tests leads: a has 0, b has 1, …
func shardOf(id string) int32 {
	if id == "" {
		return 0
	}
	return int32(id[0] - 'a')
}

func node(name, state string, shard int32) *nodev1.NodeHealth {
	return &nodev1.NodeHealth{Name: name, Message: state, Owner: &metav1.Owner{Shard: &shard, Epoch: 1}}
}

func put(name, state string, shard int32) message {
	return message{Type: metav1.EventType_EVENT_TYPE_ADDED, Item: node(name, state, shard), ResumeToken: "after " + name}
}

func remove(name, state string, shard int32) message {
	return message{Type: metav1.EventType_EVENT_TYPE_DELETED, Item: node(name, state, shard)}
}

// mark is a bookmark of a replica that covers the shards.
func mark(id string, first bool, shards ...int32) message {
	return message{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{
		InitialEventsEnd: first, Sources: []*metav1.Source{{Service: "leasesvc", ReplicaId: id, Epoch: 1, Shards: shards}},
	}}
}

// fixture is a Hub and its fake sources. Each stream sends what open returns for it and what report
// adds, until cut ends it.
type fixture struct {
	t   *testing.T
	hub *fanin.Hub

	mu      sync.Mutex // guards the fields below
	members []term.Member
	leaders []string
	changed chan struct{}
	open    func(id, token string) ([]message, error)
	opened  []string // each attempt as "id token"
	streams map[chan message]string
	// closing is how long a stream takes to end with its context.
	closing time.Duration
}

// newReplicas runs a Hub over replicas in a bubble, until the test ends. Each leads one shard.
func newReplicas(t *testing.T, open func(id, token string) ([]message, error), ids ...string) *fixture {
	t.Helper()
	f := newFixture(t, open, ids...)
	f.run(merge.Partitioned)
	return f
}

// newLeader runs a Hub over one leader. Its streams report these items as "new".
func newLeader(t *testing.T, names ...string) *fixture {
	t.Helper()
	f := newFixture(t, reports(names...), "")
	f.run(merge.Exclusive)
	return f
}

func newFixture(t *testing.T, open func(id, token string) ([]message, error), ids ...string) *fixture {
	f := &fixture{t: t, open: open, leaders: ids, changed: make(chan struct{}), streams: map[chan message]string{}}
	for _, id := range ids {
		f.members = append(f.members, term.Member{ID: id, Service: "leasesvc", GRPCAddress: id + ":1"})
	}
	return f
}

// run starts the Hub and returns what stops it.
func (f *fixture) run(ownership merge.Ownership) (stop func()) {
	f.t.Helper()
	cfg := fanin.Config{
		Service: "leasesvc", Sources: f.sources, Open: f.stream, SilenceTimeout: time.Second, Ownership: ownership,
		Same: func(a, b merge.Item) bool { return proto.Equal(a, b) },
	}
	if ownership == merge.Exclusive {
		cfg.Ended = func(last merge.Item) merge.Item { return node(last.GetName(), "ended", 0) }
	} else {
		cfg.Leaders = f.askLeaders
	}
	f.hub = fanin.NewHub(cfg)
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

func (f *fixture) askLeaders(context.Context) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaders
}

func (f *fixture) stream(ctx context.Context, source term.Member, token string) (fanin.Stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, source.ID+" "+token)
	first, err := f.open(source.ID, token)
	if err != nil {
		return nil, err
	}
	messages := make(chan message, 100)
	for _, m := range first {
		messages <- m
	}
	f.streams[messages] = source.ID
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

// report sends messages on all streams of a replica.
func (f *fixture) report(id string, messages ...message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for stream, of := range f.streams {
		for _, m := range messages {
			if of == id {
				stream <- m
			}
		}
	}
}

// cut ends all streams. The next ones are opened by open, unless it is nil.
func (f *fixture) cut(open func(id, token string) ([]message, error)) {
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

func (f *fixture) setLeaders(leaders ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaders = leaders
}

func (f *fixture) attempts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.opened)
}

func (f *fixture) checkStreams(want int, when string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := len(f.streams); got != want {
		f.t.Errorf("%d streams %s, want %d", got, when, want)
	}
}

// reports returns an open whose streams contain these items.
func reports(names ...string) func(string, string) ([]message, error) {
	return func(id, _ string) ([]message, error) {
		var messages []message
		for _, name := range names {
			messages = append(messages, put(name, "new", shardOf(id)))
		}
		return append(messages, mark(id, true, shardOf(id))), nil
	}
}

// reportsOwn is an open whose streams contain one item, which is named after the replica.
func reportsOwn(id, _ string) ([]message, error) { return reports("of-"+id)(id, "") }

func fails(string, string) ([]message, error) { return nil, errDown }

// silent is an open whose streams report nothing.
func silent(string, string) ([]message, error) { return nil, nil }

// client is one watch call and what it got.
type client struct {
	t    *testing.T
	stop func()
	done chan struct{}

	mu        sync.Mutex // guards the fields below
	events    map[string]string
	items     map[string]string
	bookmarks int
	missing   []string // of the last bookmark
	token     string
	err       error
}

func (f *fixture) watch(token string) *client {
	c := &client{t: f.t, done: make(chan struct{}), events: map[string]string{}, items: map[string]string{}}
	ctx, stop := context.WithCancel(f.t.Context())
	c.stop = func() { stop(); <-c.done }
	f.t.Cleanup(c.stop)
	go func() {
		defer close(c.done)
		err := f.hub.Serve(ctx, fanin.Request{Method: "Watch", ResumeToken: token}, c.take)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
	}()
	return c
}

func (f *fixture) join() *client { return f.watch("") }

func (c *client) take(event fanin.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = event.ResumeToken
	if event.Bookmark != nil {
		c.bookmarks++
		c.missing = nil
		for _, part := range event.Bookmark.Missing {
			c.missing = append(c.missing, part.ReplicaId+": "+part.Message)
		}
		return nil
	}
	name, state := event.Item.GetName(), event.Item.(*nodev1.NodeHealth).Message
	kind := strings.ToLower(strings.TrimPrefix(event.Type.String(), "EVENT_TYPE_"))
	c.events[name] = kind + " " + state
	if delete(c.items, name); event.Type != metav1.EventType_EVENT_TYPE_DELETED {
		c.items[name] = state
	}
	return nil
}

// checkEvents waits and compares the last event of each item since the last check.
func (c *client) checkEvents(within time.Duration, want map[string]string) {
	c.t.Helper()
	time.Sleep(within)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		c.t.Fatalf("Serve() = %v", c.err)
	}
	if diff := cmp.Diff(want, c.events); diff != "" {
		c.t.Errorf("events (-want +got):\n%s", diff)
	}
	clear(c.events)
}

func (c *client) checkMissing(want ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if diff := cmp.Diff(want, c.missing); diff != "" {
		c.t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func (c *client) read() (bookmarks int, token string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bookmarks, c.token, c.err
}

func TestHub_StreamsAreOpenWhileThereAreReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		time.Sleep(time.Hour)
		f.checkStreams(0, "before the first reader")
		first, second := f.join(), f.join()
		second.checkEvents(time.Second, map[string]string{"of-a": "added new", "of-b": "added new"})
		second.checkMissing()
		first.stop()
		for range 60 { // a stream with bookmarks is not silent
			time.Sleep(time.Minute)
			f.report("a", mark("a", false, 0))
			f.report("b", mark("b", false, 1))
		}
		f.checkStreams(2, "while there is a reader")
		if attempts := len(f.attempts()); attempts != 2 {
			t.Errorf("%d streams were opened, want 2", attempts)
		}
	})
}

func TestHub_LingerEndsAndTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]*fixture{"replicas": newReplicas(t, reportsOwn, "a"), "leader": newLeader(t, "of-")} {
			clients := []*client{f.join(), f.join()}
			time.Sleep(time.Second)
			f.checkStreams(1, name+" for two readers")
			for _, c := range clients {
				c.stop()
			}
			_, token, _ := clients[0].read()
			time.Sleep(fanin.Linger - time.Second)
			f.checkStreams(1, name+" in Linger")
			resumed := f.watch(token)
			resumed.checkEvents(time.Second, map[string]string{})
			resumed.stop()
			time.Sleep(fanin.Linger + 7*time.Second)
			f.checkStreams(0, name+" after Linger")

			f.cut(reports("other"))
			f.join().checkEvents(time.Second, map[string]string{"other": "added new"})
			late := f.watch(token)
			<-late.done
			if _, _, err := late.read(); !errors.Is(err, watchcache.ErrExpired) {
				t.Errorf("%s: Serve() with an old token = %v, want ErrExpired", name, err)
			}
			if attempts := len(f.attempts()); attempts != 2 {
				t.Errorf("%s: %d streams were opened, want 2", name, attempts)
			}
		}
	})
}

// A reader that joins while old streams end must not get what they report.
func TestHub_ReaderThatJoinsWhileStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []*fixture{newReplicas(t, reports("x"), "a"), newLeader(t, "x")} {
			f.closing = 10 * time.Second
			first := f.join()
			time.Sleep(time.Second)
			first.stop()
			time.Sleep(fanin.Linger + 6*time.Second)

			second := f.join()
			second.checkEvents(time.Second, map[string]string{})
			if bookmarks, _, _ := second.read(); bookmarks != 0 {
				t.Error("a bookmark before the new stream is open")
			}
			second.checkEvents(30*time.Second, map[string]string{"x": "added new"})
		}
	})
}

func TestHub_ReaderResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a")
		first := f.join()
		time.Sleep(time.Second)
		first.stop()
		_, token, _ := first.read()
		f.report("a", put("x", "new", 0), remove("of-a", "", 0))
		f.watch(token).checkEvents(time.Second, map[string]string{"x": "added new", "of-a": "deleted new"})
	})
}

func TestHub_ListsGetATokenOnceNothingIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		if token, _ := f.hub.ResumeToken("Watch", ""); token != "" {
			t.Errorf("a token %q before there is a cache", token)
		}
		f.join()
		time.Sleep(time.Second)
		token, source := f.hub.ResumeToken("Watch", "")
		if token == "" || source != "" {
			t.Errorf("token %q of source %q, want one of all sources", token, source)
		}
		f.report("a", put("x", "new", 0))
		f.watch(token).checkEvents(time.Second, map[string]string{"x": "added new"})
		f.report("b", mark("b", false))
		time.Sleep(time.Second)
		if token, _ := f.hub.ResumeToken("Watch", ""); token != "" {
			t.Errorf("a token %q while a shard is missing", token)
		}
		one := newLeader(t)
		one.cut(func(string, string) ([]message, error) { return []message{mark("r7", true)}, nil })
		one.join()
		time.Sleep(time.Second)
		if token, source := one.hub.ResumeToken("Watch", ""); token == "" || source != "r7" {
			t.Errorf("token %q of source %q, want one of r7", token, source)
		}
	})
}

func TestHub_StreamsResumeUnlessTheTokenExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := 0
		f := newReplicas(t, func(string, string) ([]message, error) {
			if streams++; streams == 3 {
				return nil, errExpired
			}
			return []message{put("x", "new", 0), mark("a", true, 0)}, nil
		}, "a")
		f.join()
		for range 2 {
			time.Sleep(2 * time.Second)
			f.cut(nil)
		}
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff([]string{"a ", "a after x", "a after x", "a "}, f.attempts()); diff != "" {
			t.Errorf("streams opened (-want +got):\n%s", diff)
		}
	})
}

func TestHub_PausesOfReplicasGrowToFourSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, func(id, token string) ([]message, error) {
			if id == "b" {
				return nil, errDown
			}
			return reportsOwn(id, token)
		}, "a", "b")
		c := f.join()
		c.checkEvents(time.Second, map[string]string{"of-a": "added new"})
		c.checkMissing("b: down")
		time.Sleep(5 * time.Minute)
		if attempts := len(f.attempts()); attempts < 50 || attempts > 160 {
			t.Errorf("%d attempts in 5 minutes, want one in four seconds", attempts)
		}
	})
}

func TestHub_SilenceBeforeTheBookmarkIsAFailure(t *testing.T) {
	const message = "it stopped before it had reported everything"
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, func(id, token string) ([]fanin.Message, error) {
			messages, err := reportsOwn(id, token)
			if id == "b" {
				messages = messages[:1]
			}
			return messages, err
		}, "a", "b")
		c := f.join()
		c.checkEvents(999*time.Millisecond, map[string]string{}) // waits for b
		c.checkEvents(2*time.Millisecond, map[string]string{"of-a": "added new", "of-b": "added new"})
		c.checkMissing("b: " + message)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newLeader(t)
		f.cut(silent)
		c := f.join()
		joined := time.Now()
		<-c.done
		var none fanin.NoSourceError
		if _, _, err := c.read(); !errors.As(err, &none) || !strings.Contains(none.Failures[0].Err.Error(), message) || time.Since(joined) != time.Second {
			t.Errorf("Serve() = %v after %s, want silence after a second", err, time.Since(joined))
		}
	})
}

// A stream whose connection is dead without an error is opened again.
func TestHub_SilenceAfterTheBookmarkIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []*fixture{newReplicas(t, reportsOwn, "a"), newLeader(t, "of-")} {
			c := f.join()
			time.Sleep(89 * time.Second)
			c.checkMissing()
			f.mu.Lock()
			f.open = fails
			f.mu.Unlock()
			time.Sleep(2 * time.Second)
			if attempts := len(f.attempts()); attempts < 2 {
				t.Fatal("the stream was not opened again")
			}
			if c.mu.Lock(); len(c.missing) != 1 || len(c.items) != 1 {
				t.Errorf("missing %v with %v, want the source, and its item unchanged", c.missing, c.items)
			}
			c.mu.Unlock()
			f.cut(reportsOwn)
			time.Sleep(20 * time.Second)
			c.checkMissing()
		}
	})
}

// A source that reports endlessly delays readers only for some seconds.
func TestHub_SourceThatNeverSendsABookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, func(id, token string) ([]message, error) {
			if id == "b" {
				return []message{put("of-b", "0", 1), mark("b", false, 1)}, nil // not the end of the initial report
			}
			return reportsOwn(id, token)
		}, "a", "b")
		c := f.join()
		for range 12 {
			f.report("b", put("of-b", time.Now().String(), 1))
			time.Sleep(500 * time.Millisecond)
		}
		c.checkEvents(time.Millisecond, map[string]string{"of-a": "added new", "of-b": "modified " + time.Now().Add(-500*time.Millisecond).String()})
		c.checkMissing("b: it has not reported everything yet")
	})
}

func TestHub_BookmarkWithoutASourceIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		c := f.join()
		time.Sleep(time.Second)
		f.report("b", message{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{}})
		f.mu.Lock()
		f.open = fails
		f.mu.Unlock()
		c.checkEvents(10*time.Millisecond, map[string]string{"of-a": "added new", "of-b": "added new"})
		c.checkMissing("b: its bookmark names no source")
	})
}

func TestHub_UnknownEventsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a")
		c := f.join()
		f.report("a", message{Type: 99, Item: node("x", "", 0)}, message{}, put("", "without a name", 0), put("y", "of a shard that is none", -1))
		c.checkEvents(time.Second, map[string]string{"of-a": "added new"})
		c.checkMissing()
	})
}

func TestHub_NoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, f := range map[int]*fixture{2: newReplicas(t, fails, "a", "b"), 1: newLeader(t)} {
			f.cut(fails)
			for range 2 {
				c := f.join()
				<-c.done
				var none fanin.NoSourceError
				if _, _, err := c.read(); !errors.As(err, &none) || len(none.Failures) != want || !errors.Is(none.Failures[0].Err, errDown) {
					t.Errorf("Serve() = %v, want NoSourceError with %d failures", err, want)
				}
			}
		}
	})
}

func TestHub_ShardMovesWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		c := f.join()
		c.checkEvents(time.Second, map[string]string{"of-a": "added new", "of-b": "added new"})
		f.setLeaders("", "b")
		f.report("a", mark("a", false))
		c.checkEvents(time.Second, map[string]string{})
		c.checkMissing(": no replica leads the shards")
		time.Sleep(time.Minute) // however long it takes
		f.setLeaders("b", "b")
		f.report("b", put("of-a", "new", 0), mark("b", false, 0, 1))
		c.checkEvents(time.Second, map[string]string{})
		c.checkMissing()
		f.report("a", mark("a", false))
		f.report("b", mark("b", false, 1))
		f.setLeaders("a", "b")
		c.checkEvents(6*time.Second, map[string]string{})
		c.checkMissing("a: it has not reported the shards wholly yet")
		f.report("a", mark("a", false, 0))
		c.checkEvents(time.Second, map[string]string{"of-a": "deleted new"})
	})
}

func TestHub_ReplicaThatLeftIsNotMissingOnceAnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a", "b")
		c := f.join()
		time.Sleep(time.Second)
		f.setMembers(f.members[:1])
		time.Sleep(time.Second)
		c.checkMissing("b: it leads the shards and is not registered")
		f.setLeaders("a", "a")
		f.report("a", put("of-b", "new", 1), mark("a", false, 0, 1))
		time.Sleep(time.Second)
		c.checkMissing()
		f.checkStreams(1, "after b left")
	})
}

func TestHub_StopEndsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, reportsOwn, "a")
		stop := f.run(merge.Partitioned)
		c := f.join()
		time.Sleep(time.Second)
		stop()
		<-c.done
		if _, _, err := c.read(); !errors.Is(err, fanin.ErrStopped) {
			t.Errorf("Serve() = %v, want %v", err, fanin.ErrStopped)
		}
	})
}

func TestLeader_ReaderGetsAllThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLeader(t, "a", "b")
		c := f.join()
		c.checkEvents(time.Second, map[string]string{"a": "added new", "b": "added new"})
		if bookmarks, _, _ := c.read(); bookmarks != 1 {
			t.Errorf("%d bookmarks, want one", bookmarks)
		}
		c.checkMissing()
		f.report("", put("a", "changed", 0), put("c", "new", 0))
		c.checkEvents(time.Second, map[string]string{"a": "modified changed", "c": "added new"})
		f.report("", remove("b", "repaired", 0))
		c.checkEvents(time.Second, map[string]string{"b": "deleted repaired"})
		f.report("", put("b", "again", 0))
		c.checkEvents(time.Second, map[string]string{"b": "added again"})
	})
}

func TestLeader_NextLeaderReplacesTheItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLeader(t, "a", "b")
		c := f.join()
		c.checkEvents(2*time.Second, map[string]string{"a": "added new", "b": "added new"})
		f.cut(func(_, token string) ([]message, error) {
			if token != "" {
				return nil, errExpired
			}
			return reports("b", "c")("", "")
		})
		c.checkEvents(2*time.Second, map[string]string{"a": "deleted ended", "c": "added new"})
		c.checkMissing()
	})
}

func TestLeader_ItemsStayWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLeader(t, "a")
		c := f.join()
		c.checkEvents(2*time.Second, map[string]string{"a": "added new"})
		f.cut(fails)
		c.checkEvents(time.Minute, map[string]string{})
		c.checkMissing(": down")
		before, _, _ := c.read()
		c.checkEvents(time.Minute, map[string]string{})
		if after, _, _ := c.read(); after < before+2 {
			t.Errorf("%d bookmarks in a minute, want one in 30 seconds", after-before)
		}
		f.cut(reports("a"))
		c.checkEvents(4*time.Second, map[string]string{})
		c.checkMissing()
	})
}

func TestLeader_PausesGrowAndEndWhenTheReplicasChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLeader(t, "a")
		f.join()
		time.Sleep(2 * time.Second)
		f.cut(fails)
		time.Sleep(time.Minute)
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
func TestLeader_BreakingStreamsAreOpenedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLeader(t, "a")
		c := f.join()
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
			f.cut(nil)
		}
		if attempts := len(f.attempts()); attempts > 90 {
			t.Errorf("%d attempts in ten seconds", attempts)
		}
		c.checkMissing()
	})
}

// A replica reports few items, and each is huge.
func TestHub_BoundsTheBytesOfItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		huge := strings.Repeat("x", 100<<20) // the items share it
		f := newReplicas(t, func(id, token string) ([]message, error) {
			if id == "a" {
				return reportsOwn(id, token)
			}
			var messages []message
			for number := range 6 {
				messages = append(messages, put(fmt.Sprintf("of-%s-%d", id, number), huge, shardOf(id)))
			}
			return append(messages, mark(id, true, shardOf(id))), nil
		}, "a", "b")
		c := f.watch("")
		time.Sleep(5 * time.Second)
		c.checkMissing("b: it reports more than a cluster has")
		if c.items["of-a"] != "new" {
			t.Error("the items of the other replica are missing too")
		}
	})
}
