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
	longestPause  = 10 * time.Second
)

// streams are those of a hub while somebody reads. One goroutine calls its methods.
type streams[T merge.Item] struct {
	hub     *Hub[T]
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	open    map[process]context.CancelFunc
}

// process names one life of a replica at one address.
type process struct{ id, address string }

func processOf(member term.Member) process {
	return process{id: member.ID, address: member.GRPCAddress}
}

func newStreams[T merge.Item](ctx context.Context, h *Hub[T]) *streams[T] {
	ctx, stop := context.WithCancel(ctx)
	return &streams[T]{hub: h, ctx: ctx, stop: stop, open: map[process]context.CancelFunc{}}
}

// drop ends the streams to all but these members.
func (s *streams[T]) drop(members []term.Member) {
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

// add opens a stream to each of these members to which there is none.
func (s *streams[T]) add(members []term.Member) {
	for _, member := range members {
		if s.open[processOf(member)] != nil {
			continue
		}
		ctx, stop := context.WithCancel(s.ctx)
		s.open[processOf(member)] = stop
		follower := &follower[T]{hub: s.hub, member: member}
		s.running.Go(func() { follower.run(ctx) })
	}
}

// end ends all streams and waits for them.
func (s *streams[T]) end() {
	s.stop()
	s.running.Wait()
}

// follower follows one replica.
type follower[T merge.Item] struct {
	hub     *Hub[T]
	member  term.Member
	version string // behind which to resume
	heard   bool   // whether this stream has told everything
}

func (f *follower[T]) run(ctx context.Context) {
	pause := shortestPause
	for ctx.Err() == nil {
		started := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		f.fail(err, time.Since(started))
		if f.heard {
			pause = shortestPause
		}
		if f.hub.cfg.Outdated(err) && f.version != "" {
			f.version = ""
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, longestPause)
	}
}

// follow reads one stream to its end.
func (f *follower[T]) follow(ctx context.Context) error {
	f.heard = false
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(f.hub.cfg.Patience, func() { cancel(errSilent) })
	defer patience.Stop()
	next, err := f.hub.cfg.Open(ctx, f.member, f.version)
	if err != nil {
		return cause(ctx, err)
	}
	f.hub.tell(func() { f.hub.state.Begin(f.member.ID, f.version != "") })
	for {
		message, err := next()
		if err != nil {
			return cause(ctx, err)
		}
		if !f.heard && patience.Stop() {
			patience.Reset(f.hub.cfg.Patience)
		}
		if f.take(ctx, message); f.heard {
			patience.Stop()
		}
	}
}

func (f *follower[T]) take(ctx context.Context, message Message[T]) {
	if message.Version != "" {
		f.version = message.Version
	}
	f.hub.tell(func() {
		state, id := f.hub.state, f.member.ID
		switch {
		case ctx.Err() != nil: // this stream is not read any more, and its replica may have left
		case message.Kind != Bookmark && message.Item.GetName() == "": // says nothing of anything
		case message.Kind == Put:
			state.Put(id, message.Item)
		case message.Kind == Remove:
			state.Remove(time.Now(), id, message.Item)
			f.hub.poke()
		case message.Kind == Bookmark:
			state.Bookmark(time.Now(), id)
			f.heard = true
			f.hub.poke()
		}
	})
}

func (f *follower[T]) fail(err error, after time.Duration) {
	failure := Failure{Err: err, Status: fanout.Failure(f.member, err, after)}
	f.hub.tell(func() {
		if _, expected := f.hub.failures[f.member.ID]; expected {
			f.hub.state.Fail(f.member.ID)
			f.hub.failures[f.member.ID] = failure
		}
	})
}

var errSilent = status.Error(codes.Unavailable, "it fell silent before it had told everything")

// cause tells why a stream ended where gRPC only says that its context did.
func cause(ctx context.Context, err error) error {
	if reason := context.Cause(ctx); errors.Is(reason, errSilent) {
		return reason
	}
	return err
}
