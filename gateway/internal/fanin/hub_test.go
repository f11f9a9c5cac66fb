package fanin_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/internal/term"
)

type thing struct {
	name  string
	epoch int64
}

func (t thing) GetName() string { return t.name }
func (t thing) GetEpoch() int64 { return t.epoch }

var (
	errDown     = errors.New("down")
	errOutdated = errors.New("outdated")
)

// replicas are fake replicas. Each stream says what its script says and then waits for its end.
type replicas struct {
	mu      sync.Mutex // guards the rest
	members []term.Member
	changed chan struct{}
	// open makes a stream's words, by replica; an error refuses it.
	open func(id, version string) ([]fanin.Message[thing], error)
	// opened are all attempts, as "id version".
	opened []string
	at     []time.Duration
	start  time.Time
	// broken ends all streams when it is closed.
	broken chan struct{}
	live   int
	// leaving is how long a stream takes to end when its context does.
	leaving time.Duration
}

func newReplicas(open func(id, version string) ([]fanin.Message[thing], error), ids ...string) *replicas {
	r := &replicas{open: open, changed: make(chan struct{}), broken: make(chan struct{}), start: time.Now()}
	for _, id := range ids {
		r.members = append(r.members, term.Member{ID: id, Service: "leasesvc", GRPCAddress: id + ":1"})
	}
	return r
}

func (r *replicas) known() ([]term.Member, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members, r.changed
}

func (r *replicas) stream(ctx context.Context, member term.Member, version string) (fanin.Stream[thing], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened, r.at = append(r.opened, member.ID+" "+version), append(r.at, time.Since(r.start))
	words, err := r.open(member.ID, version)
	if err != nil {
		return nil, err
	}
	r.live++
	broken := r.broken
	return func() (fanin.Message[thing], error) {
		if len(words) > 0 {
			next := words[0]
			words = words[1:]
			return next, nil
		}
		var why error
		select {
		case <-ctx.Done():
			why = ctx.Err()
			time.Sleep(r.leaving)
		case <-broken:
			why = errDown
		}
		r.mu.Lock()
		r.live--
		r.mu.Unlock()
		return fanin.Message[thing]{}, why
	}, nil
}

// cut ends all streams.
func (r *replicas) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.broken)
	r.broken = make(chan struct{})
}

func (r *replicas) log() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opened
}

func (r *replicas) streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live
}

// running starts a hub within a bubble and ends it with the test.
func running(t *testing.T, r *replicas) *fanin.Hub[thing] {
	t.Helper()
	hub := fanin.New(fanin.Config[thing]{
		Members: r.known, Open: r.stream, Patience: time.Second,
		Outdated: func(err error) bool { return errors.Is(err, errOutdated) },
		Same:     func(a, b thing) bool { return a == b },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return hub
}

// says is a replica that has one item and tells everything.
func says(name, version string) []fanin.Message[thing] {
	return []fanin.Message[thing]{
		{Kind: fanin.Put, Item: thing{name: name, epoch: 1}, Version: version}, {Kind: fanin.Bookmark, Version: version},
	}
}

func all(thing) bool { return true }

// firstBookmark reads until a bookmark and returns the names seen and who is missing.
func firstBookmark(t *testing.T, reader *fanin.Reader[thing]) (names, missing []string) {
	t.Helper()
	for {
		taken, err := reader.Next(t.Context())
		if err != nil {
			t.Fatalf("Next() = %v", err)
		}
		for _, event := range taken.Events {
			names = append(names, event.Item.name)
		}
		if taken.Bookmark {
			for _, source := range taken.Missing {
				missing = append(missing, source.Replica.Id+": "+source.Message)
			}
			return names, missing
		}
	}
}

func TestHub_StreamsLiveWhileSomebodyReadsAndAWhileLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(id, _ string) ([]fanin.Message[thing], error) { return says("of-"+id, ""), nil }, "a", "b")
		hub := running(t, r)
		time.Sleep(time.Hour)
		if opened := len(r.log()); opened != 0 {
			t.Fatalf("%d streams opened before anybody read", opened)
		}

		first, second := hub.Join(all), hub.Join(all)
		names, missing := firstBookmark(t, first)
		if len(names) != 2 || len(missing) != 0 {
			t.Errorf("names %v, missing %v; want two names and nobody missing", names, missing)
		}
		first.Close()
		time.Sleep(time.Hour)
		if streams := r.streams(); streams != 2 {
			t.Errorf("%d streams while somebody reads, want 2", streams)
		}
		second.Close()
		time.Sleep(fanin.Linger - time.Second)
		if streams := r.streams(); streams != 2 {
			t.Errorf("%d streams shortly after the last reader left, want 2", streams)
		}
		time.Sleep(7 * time.Second)
		if streams := r.streams(); streams != 0 {
			t.Errorf("%d streams long after the last reader left, want none", streams)
		}

		again := hub.Join(all)
		defer again.Close()
		if names, _ := firstBookmark(t, again); len(names) != 2 {
			t.Errorf("a later reader sees %v, want two names", names)
		}
		if opened := len(r.log()); opened != 4 {
			t.Errorf("%d streams opened in all, want 4", opened)
		}
	})
}

// Whoever comes while the streams of those before him end reads nothing that is about to be forgotten, or he would be told it twice.
func TestHub_ReaderWhoComesWhileStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(id, _ string) ([]fanin.Message[thing], error) { return says("of-"+id, ""), nil }, "a")
		r.leaving = 10 * time.Second
		hub := running(t, r)
		first := hub.Join(all)
		firstBookmark(t, first)
		first.Close()
		time.Sleep(fanin.Linger + 6*time.Second)

		second := hub.Join(all)
		defer second.Close()

		names, _ := firstBookmark(t, second)
		for range 3 {
			later, _ := firstBookmark(t, second)
			names = append(names, later...)
		}
		if diff := cmp.Diff([]string{"of-a"}, names); diff != "" {
			t.Errorf("told in all (-want +got):\n%s", diff)
		}
	})
}

func TestHub_ResumesUnlessTheVersionIsOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lives := 0
		r := newReplicas(func(_, version string) ([]fanin.Message[thing], error) {
			if lives++; lives == 3 {
				return nil, errOutdated
			}
			return says("x", "v1"), nil
		}, "a")
		reader := running(t, r).Join(all)
		defer reader.Close()
		firstBookmark(t, reader)

		for range 2 {
			r.cut()
			time.Sleep(time.Second)
		}

		if diff := cmp.Diff([]string{"a ", "a v1", "a v1", "a "}, r.log()); diff != "" {
			t.Errorf("streams opened (-want +got):\n%s", diff)
		}
	})
}

func TestHub_PausesGrowToTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(id, _ string) ([]fanin.Message[thing], error) {
			if id == "b" {
				return nil, errDown
			}
			return says("x", ""), nil
		}, "a", "b")
		reader := running(t, r).Join(all)
		defer reader.Close()
		if _, missing := firstBookmark(t, reader); len(missing) != 1 {
			t.Errorf("missing %v, want b", missing)
		}

		time.Sleep(5 * time.Minute)

		// Ten seconds with jitter, once the pauses have grown.
		if attempts := len(r.log()); attempts < 20 || attempts > 70 {
			t.Errorf("%d attempts within 5 minutes", attempts)
		}
	})
}

func TestHub_SilenceWhileTellingEverythingIsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(id, _ string) ([]fanin.Message[thing], error) {
			if id == "b" {
				return says("y", "")[:1], nil // and nothing more
			}
			return says("x", ""), nil
		}, "a", "b")
		reader := running(t, r).Join(all)
		defer reader.Close()
		begun := time.Now()

		names, missing := firstBookmark(t, reader)

		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("waited %s for the silent replica, want its patience", waited)
		}
		if diff := cmp.Diff([]string{"b: it fell silent before it had told everything"}, missing); diff != "" || len(names) != 2 {
			t.Errorf("names %v, missing (-want +got):\n%s", names, diff)
		}
	})
}

func TestHub_NobodyTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(string, string) ([]fanin.Message[thing], error) { return nil, errDown }, "a", "b")
		reader := running(t, r).Join(all)
		defer reader.Close()

		_, err := reader.Next(t.Context())

		var none fanin.NoSourceError
		if !errors.As(err, &none) || len(none.Failures) != 2 || !errors.Is(none.Failures[0].Err, errDown) {
			t.Errorf("Next() = %v, want NoSourceError with both failures", err)
		}
	})
}

func TestHub_ReplicaThatLeavesIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(id, _ string) ([]fanin.Message[thing], error) { return says("of-"+id, ""), nil }, "a", "b")
		reader := running(t, r).Join(all)
		defer reader.Close()
		firstBookmark(t, reader)

		r.mu.Lock()
		r.members = r.members[:1]
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()

		if _, missing := firstBookmark(t, reader); len(missing) != 0 {
			t.Errorf("missing %v, want nobody", missing)
		}
		synctest.Wait()
		if streams := r.streams(); streams != 1 {
			t.Errorf("%d streams, want 1", streams)
		}
	})
}

func TestHub_QuietReadersGetSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(string, string) ([]fanin.Message[thing], error) { return says("x", ""), nil }, "a")
		reader := running(t, r).Join(all)
		defer reader.Close()
		firstBookmark(t, reader)

		for range 3 {
			before := time.Now()
			firstBookmark(t, reader)
			if quiet := time.Since(before); quiet > 5*time.Second {
				t.Errorf("nothing was heard for %s", quiet)
			}
		}
	})
}

func TestHub_StopEndsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(func(string, string) ([]fanin.Message[thing], error) { return says("x", ""), nil }, "a")
		hub := fanin.New(fanin.Config[thing]{
			Members: r.known, Open: r.stream, Patience: time.Second,
			Outdated: func(error) bool { return false }, Same: func(a, b thing) bool { return a == b },
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- hub.Run(ctx) }()
		reader := hub.Join(all)
		defer reader.Close()
		firstBookmark(t, reader)

		stop()

		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		for {
			_, err := reader.Next(t.Context())
			if errors.Is(err, fanin.ErrStopped) {
				return
			}
			if err != nil {
				t.Fatalf("Next() = %v, want %v", err, fanin.ErrStopped)
			}
		}
	})
}
