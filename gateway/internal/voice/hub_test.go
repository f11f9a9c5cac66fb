package voice_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/voice"
)

type word struct{ name, state string }

var errNobody = errors.New("nobody speaks")

// speaker is who speaks: what every stream tells from its start, and then as it is said.
type speaker struct {
	mu sync.Mutex // guards the rest
	// all is what there is; nil for nobody who speaks.
	all map[string]string
	// mute is whether streams begin and say nothing.
	mute    bool
	heirs   chan struct{}
	streams map[chan voice.Message[word]]struct{}
	opened  int
}

func newSpeaker(words ...string) *speaker {
	s := &speaker{all: map[string]string{}, heirs: make(chan struct{}), streams: map[chan voice.Message[word]]struct{}{}}
	for _, name := range words {
		s.all[name] = "new"
	}
	return s
}

func (s *speaker) open(ctx context.Context) (voice.Stream[word], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	if s.all == nil {
		return nil, errNobody
	}
	words := make(chan voice.Message[word], 100)
	if !s.mute {
		for name, state := range s.all {
			words <- voice.Message[word]{Put: true, Item: word{name: name, state: state}}
		}
		words <- voice.Message[word]{Bookmark: true}
	}
	s.streams[words] = struct{}{}
	return func() (voice.Message[word], error) {
		select {
		case next, open := <-words:
			if !open {
				return next, errors.New("broken")
			}
			return next, nil
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.streams, words)
			return voice.Message[word]{}, ctx.Err()
		}
	}, nil
}

// say tells of an item on all streams.
func (s *speaker) say(name, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = state
	for words := range s.streams {
		words <- voice.Message[word]{Put: true, Item: word{name: name, state: state}}
	}
}

func (s *speaker) end(name, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
	for words := range s.streams {
		words <- voice.Message[word]{Remove: true, Item: word{name: name, state: state}}
	}
}

// hang up ends all streams; the next ones tell all of this.
func (s *speaker) hangUp(all map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
	for words := range s.streams {
		close(words)
		delete(s.streams, words)
	}
}

// announce says that another one may speak than before.
func (s *speaker) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.heirs)
	s.heirs = make(chan struct{})
}

func (s *speaker) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heirs
}

func (s *speaker) live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

func (s *speaker) attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func listening(t *testing.T, s *speaker) *voice.Hub[word] {
	t.Helper()
	hub := voice.New(voice.Config[word]{
		Open: s.open, Name: func(w word) string { return w.name }, Changed: s.changed, Patience: time.Second,
		Departed: func(w word) word { return word{name: w.name, state: "departed"} },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return hub
}

// client keeps what it is told.
type client struct {
	t      *testing.T
	reader *voice.Reader[word]
	events map[string]string // since the last call of told, the last kind and state of each
	seen   map[string]string
	failed error
	marked int
}

func joined(t *testing.T, hub *voice.Hub[word]) *client {
	t.Helper()
	c := &client{t: t, reader: hub.Join(), events: map[string]string{}, seen: map[string]string{}}
	t.Cleanup(c.reader.Close)
	return c
}

var kinds = map[voice.Kind]string{voice.Added: "added", voice.Modified: "modified", voice.Removed: "removed"}

// take takes all there is to tell within some time.
func (c *client) take(within time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	for {
		batch, err := c.reader.Next(ctx)
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				c.t.Fatalf("Next() = %v", err)
			}
			return
		}
		for _, event := range batch.Events {
			c.events[event.Item.name] = kinds[event.Kind] + " " + event.Item.state
			if event.Kind == voice.Removed {
				delete(c.seen, event.Item.name)
			} else {
				c.seen[event.Item.name] = event.Item.state
			}
		}
		if batch.Bookmark {
			c.failed = batch.Failure
			c.marked++
		}
	}
}

// told takes all there is to tell within some time and compares the last event of each item.
func (c *client) told(within time.Duration, want map[string]string) {
	c.t.Helper()
	c.take(within)
	if diff := cmp.Diff(want, c.events); diff != "" {
		c.t.Errorf("events (-want +got):\n%s", diff)
	}
	clear(c.events)
}

func TestHub_TellsAllThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a", "b")
		c := joined(t, listening(t, s))
		c.told(time.Second, map[string]string{"a": "added new", "b": "added new"})
		if c.marked != 1 || c.failed != nil {
			t.Errorf("%d bookmarks, failure %v; want one without", c.marked, c.failed)
		}
		s.say("a", "worse")
		s.say("c", "new")
		c.told(time.Second, map[string]string{"a": "modified worse", "c": "added new"})
		s.end("b", "mended")
		c.told(time.Second, map[string]string{"b": "removed mended"})
		s.say("b", "again")
		c.told(time.Second, map[string]string{"b": "added again"})
	})
}

func TestHub_QuietReaderHearsThatTheWireLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := joined(t, listening(t, newSpeaker("a")))
		c.take(time.Minute)
		if c.marked < 11 || c.failed != nil {
			t.Errorf("%d bookmarks within a minute, the last with %v; want one every five seconds, without a failure", c.marked, c.failed)
		}
	})
}

// Who comes while a new voice is telling waits for it, and is not told of the silence before.
func TestHub_FailureEndsWithTheNextStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a")
		hub := listening(t, s)
		c := joined(t, hub)
		c.take(2 * time.Second)
		s.hangUp(nil)
		c.take(time.Second)
		s.mu.Lock()
		s.all, s.mute = map[string]string{"a": "new"}, true
		s.mu.Unlock()
		for s.live() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		late := hub.Join()
		defer late.Close()
		if batch, err := late.Next(t.Context()); err != nil || len(batch.Events) != 1 {
			t.Errorf("Next() = %v, %v; want what was told last", batch, err)
		}
	})
}

func TestHub_NextVoiceBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a", "b")
		c := joined(t, listening(t, s))
		c.take(2 * time.Second)
		clear(c.events)

		s.hangUp(map[string]string{"b": "worse", "c": "new"})

		c.told(time.Second, map[string]string{"a": "removed departed", "b": "added worse", "c": "added new"})
		if c.marked != 2 || c.failed != nil {
			t.Errorf("%d bookmarks, failure %v; want two without any failure", c.marked, c.failed)
		}
	})
}

func TestHub_WhatWasToldStandsWhileNobodySpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a")
		c := joined(t, listening(t, s))
		c.take(2 * time.Second)
		clear(c.events)

		s.hangUp(nil)
		c.told(time.Second, map[string]string{})
		if !errors.Is(c.failed, errNobody) {
			t.Errorf("the bookmark tells %v, want why nobody speaks", c.failed)
		}
		marked := c.marked
		c.told(time.Minute, map[string]string{})
		if c.marked < marked+12 {
			t.Errorf("%d bookmarks within a minute, want one every five seconds at least", c.marked-marked)
		}

		s.hangUp(map[string]string{"a": "new"})
		c.told(3*time.Second, map[string]string{"a": "added new"})
		if c.failed != nil {
			t.Errorf("the last bookmark tells %v, want that nobody is missing", c.failed)
		}
	})
}

func TestHub_PausesGrowAndEndWhenAnotherOneMaySpeak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a")
		c := joined(t, listening(t, s))
		c.take(2 * time.Second)
		s.hangUp(nil)
		c.take(time.Minute)
		if attempts := s.attempts(); attempts < 20 || attempts > 70 {
			t.Errorf("%d attempts within a minute, want one every one to three seconds", attempts)
		}

		s.hangUp(map[string]string{"a": "new"})
		s.announce()
		synctest.Wait()
		if live := s.live(); live != 1 {
			t.Errorf("%d streams at once after another one may speak, want 1", live)
		}
	})
}

// A stream that breaks whenever it has told everything must not be opened in a whirl.
func TestHub_BreakingStreamsAreOpenedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a")
		c := joined(t, listening(t, s))
		deadline := time.Now().Add(10 * time.Second)
		for time.Now().Before(deadline) {
			c.take(10 * time.Millisecond)
			s.hangUp(map[string]string{"a": "new"})
		}
		if attempts := s.attempts(); attempts > 90 {
			t.Errorf("%d attempts within ten seconds", attempts)
		}
		if c.failed != nil {
			t.Errorf("the last bookmark tells %v, although every stream told everything", c.failed)
		}
	})
}

func TestHub_FirstReaderLearnsThatNobodySpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker()
		s.all = nil
		hub := listening(t, s)
		for range 2 {
			reader := hub.Join()
			if _, err := reader.Next(t.Context()); !errors.Is(err, errNobody) {
				t.Errorf("Next() = %v, want why nobody speaks", err)
			}
			reader.Close()
		}
	})
}

func TestHub_SilenceBeforeTheBookmarkIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker()
		s.mute = true
		reader := listening(t, s).Join()
		defer reader.Close()
		started := time.Now()
		if _, err := reader.Next(t.Context()); !errors.Is(err, voice.ErrSilent) || time.Since(started) != time.Second {
			t.Errorf("Next() = %v after %s, want %v after the patience of a second", err, time.Since(started), voice.ErrSilent)
		}
	})
}

func TestHub_SlowReaderSkipsStatesButNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a", "b")
		hub := listening(t, s)
		c, quick := joined(t, hub), joined(t, hub)
		c.take(time.Second)
		clear(c.events)
		for _, state := range []string{"1", "2", "3"} {
			s.say("a", state)
			quick.take(time.Second)
		}
		s.say("x", "unseen")
		quick.take(time.Second)
		s.end("x", "mended")
		s.end("b", "mended")
		quick.take(time.Second)

		c.told(time.Second, map[string]string{"a": "modified 3", "b": "removed mended"})
		if diff := cmp.Diff(c.seen, quick.seen); diff != "" {
			t.Errorf("what the slow and the quick reader end with (-slow +quick):\n%s", diff)
		}
	})
}

func TestHub_OneStreamForAllAndNoneForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a")
		hub := listening(t, s)
		synctest.Wait()
		if live := s.live(); live != 0 {
			t.Errorf("%d streams before anybody reads", live)
		}
		readers := []*voice.Reader[word]{hub.Join(), hub.Join(), hub.Join()}
		for _, reader := range readers {
			if _, err := reader.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if live := s.live(); live != 1 {
			t.Errorf("%d streams for three readers, want 1", live)
		}
		for _, reader := range readers {
			reader.Close()
		}
		time.Sleep(voice.Linger / 2)
		if live := s.live(); live != 1 {
			t.Errorf("%d streams a moment after the last reader left, want 1", live)
		}
		time.Sleep(voice.Linger)
		if live, opened := s.live(), s.attempts(); live != 0 || opened != 1 {
			t.Errorf("%d streams long after the last reader left, of %d that were opened; want none of one", live, opened)
		}

		// Nobody remembers what was told, and everything is told anew.
		s.hangUp(map[string]string{"b": "new"})
		c := joined(t, hub)
		c.told(time.Second, map[string]string{"b": "added new"})
	})
}

func TestHub_StopEndsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker("a")
		hub := voice.New(voice.Config[word]{
			Open: s.open, Name: func(w word) string { return w.name }, Departed: func(w word) word { return w }, Changed: s.changed, Patience: time.Second,
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- hub.Run(ctx) }()
		reader := hub.Join()
		if _, err := reader.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		var err error
		for err == nil {
			_, err = reader.Next(t.Context())
		}
		if !errors.Is(err, voice.ErrStopped) {
			t.Errorf("Next() = %v, want %v", err, voice.ErrStopped)
		}
		reader.Close()
	})
}
