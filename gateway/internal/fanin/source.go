package fanin

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
)

// Pauses before a stream is opened again.
const (
	shortestPause = 250 * time.Millisecond
	// longestPause is for a replica.
	longestPause = 10 * time.Second
	// longestTermPause is for a term, because another replica may become its holder.
	longestTermPause = 2 * time.Second
	// stableAfter is how long a stream to the holder of a term must have lasted for the next one to
	// be opened without a pause.
	stableAfter = time.Second
)

var errSilent = status.Error(codes.Unavailable, "it stopped before it had reported everything")

// sources are the open streams of a Hub. They belong to the goroutine of Hub.Run.
type sources[T any] struct {
	hub     *Hub[T]
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	open    map[process]context.CancelFunc
}

// process identifies a process at an address.
type process struct{ id, address string }

func processOf(member term.Member) process {
	return process{id: member.ID, address: member.GRPCAddress}
}

func newSources[T any](ctx context.Context, h *Hub[T]) *sources[T] {
	ctx, stop := context.WithCancel(ctx)
	return &sources[T]{hub: h, ctx: ctx, stop: stop, open: map[process]context.CancelFunc{}}
}

// drop ends the streams to all but these members.
func (s *sources[T]) drop(members []term.Member) {
	wanted := make(map[process]bool, len(members))
	for _, member := range members {
		wanted[processOf(member)] = true
	}
	for process, stop := range s.open {
		if !wanted[process] {
			stop()
			delete(s.open, process)
		}
	}
}

// add opens a stream to each of these members that has none.
func (s *sources[T]) add(members []term.Member) {
	for _, member := range members {
		if s.open[processOf(member)] != nil {
			continue
		}
		ctx, stop := context.WithCancel(s.ctx)
		s.open[processOf(member)] = stop
		follower := &follower[T]{hub: s.hub, source: member, exclusive: s.hub.cfg.View.Ownership == merge.Exclusive}
		s.running.Go(func() { follower.run(ctx) })
	}
}

// end ends all streams and waits for them.
func (s *sources[T]) end() {
	s.stop()
	s.running.Wait()
}

// follower reads the streams of one source.
type follower[T any] struct {
	hub       *Hub[T]
	source    term.Member
	exclusive bool
	version   string // where to resume
	synced    bool   // the current stream has sent its bookmark
}

func (f *follower[T]) run(ctx context.Context) {
	pause := shortestPause
	for ctx.Err() == nil {
		_, changed := f.hub.cfg.Sources() // before Open, or a change between the two would be missed
		started := time.Now()
		err := f.follow(ctx)
		lasted := time.Since(started)
		if ctx.Err() != nil {
			return
		}
		if f.synced {
			pause = shortestPause
		}
		termEnded := f.exclusive && f.synced
		if !termEnded { // after the end of a term the items stay until the next holder reports
			f.fail(fanout.Failure{Member: f.source, Err: err, After: lasted})
		}
		switch {
		case termEnded && lasted >= stableAfter:
		case f.cannotResume(err):
			f.version = ""
		default:
			f.wait(ctx, pause, changed)
			pause = min(2*pause, f.longestPause())
		}
	}
}

// wait waits for the pause, with jitter. For the holder of a term it ends early when the replicas
// change.
func (f *follower[T]) wait(ctx context.Context, pause time.Duration, changed <-chan struct{}) {
	if !f.exclusive {
		changed = nil
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-time.After(pause/2 + rand.N(pause)):
	}
}

func (f *follower[T]) longestPause() time.Duration {
	if f.exclusive {
		return longestTermPause
	}
	return longestPause
}

func (f *follower[T]) cannotResume(err error) bool {
	tooOld := f.hub.cfg.VersionTooOld
	return f.version != "" && tooOld != nil && tooOld(err)
}

// follow reads one stream to its end.
func (f *follower[T]) follow(ctx context.Context) error {
	f.synced = false
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := f.hub.cfg.SilenceTimeout
	silence := time.AfterFunc(timeout, func() { cancel(errSilent) }) // until the bookmark
	defer silence.Stop()
	if f.exclusive {
		silence.Stop() // Open asks several replicas and bounds itself
	}
	next, err := f.hub.cfg.Open(ctx, f.source, f.version)
	if err != nil {
		return cause(ctx, err)
	}
	if f.exclusive {
		silence.Reset(timeout)
	}
	f.update(ctx, func(view *merge.View[T]) { view.Begin(f.source.ID, f.version != "") })
	for {
		message, err := next()
		if err != nil {
			return cause(ctx, err)
		}
		if !f.synced && silence.Stop() {
			silence.Reset(timeout)
		}
		if f.apply(ctx, message); f.synced {
			silence.Stop()
		}
	}
}

// apply changes the view by a message.
func (f *follower[T]) apply(ctx context.Context, message Message[T]) {
	if message.Version != "" {
		f.version = message.Version
	}
	id, now := f.source.ID, time.Now()
	f.update(ctx, func(view *merge.View[T]) {
		kind := message.Kind
		if name, _ := f.hub.cfg.View.Key(message.Item); name != "" {
			switch kind {
			case Put, PutAll:
				view.Put(id, message.Item)
			case Remove:
				view.Remove(now, id, message.Item)
				f.hub.changed.raise() // Run has to wait for the Hold of this item, too
			}
		}
		if kind == Bookmark || kind == PutAll {
			view.Bookmark(now, id)
			f.synced = true
			f.hub.changed.raise()
		}
	})
}

// update changes the view unless the stream was canceled: a message may still be on its way.
func (f *follower[T]) update(ctx context.Context, change func(*merge.View[T])) {
	f.hub.update(func() {
		if ctx.Err() == nil {
			change(f.hub.view)
		}
	})
}

func (f *follower[T]) fail(failure fanout.Failure) {
	h := f.hub
	h.update(func() {
		if _, registered := h.failures[f.source.ID]; registered {
			h.view.Fail(f.source.ID)
			h.failures[f.source.ID] = failure
		}
	})
}

// cause replaces gRPC's error for a canceled context by errSilent where that is why.
func cause(ctx context.Context, err error) error {
	if reason := context.Cause(ctx); errors.Is(reason, errSilent) {
		return reason
	}
	return err
}
