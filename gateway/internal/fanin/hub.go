package fanin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/watchcache"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

const (
	// Linger is how long streams are kept after the last reader has left, for a page that is
	// reloaded.
	Linger = 30 * time.Second
	// lingerCheck is how often the end of Linger is looked for.
	lingerCheck = 5 * time.Second
	// readPause is the shortest time between two steps of one reader.
	readPause = 20 * time.Millisecond
)

// ErrStopped is what Serve returns after Run has returned.
var ErrStopped = errors.New("the gateway has stopped watching")

var errNotSynced = status.Error(codes.Unavailable, "it has not reported everything yet")

// Config describes the sources of a Hub.
type Config struct {
	// Service is the service of the sources.
	Service string
	// Sources returns the replicas to watch, and a channel that is closed when they change. An
	// exclusive Hub has one source; there the channel is closed when another replica may lead.
	Sources func() ([]term.Member, <-chan struct{})
	// Open opens a stream that ends with ctx. The stream starts after token, or reports everything
	// if token is empty. With an exclusive Hub, Open has to bound the time that it takes.
	Open func(ctx context.Context, source term.Member, token string) (Stream, error)
	// Leaders returns the leader of each shard, as merge.Missing takes it, or nil if no replica
	// tells. Nil means that the items are not divided into shards.
	Leaders func(ctx context.Context) []string
	// Absent returns further parts that are missing, from memory. Optional.
	Absent func() []*metav1.MissingPart
	// SilenceTimeout is how long a source may pause before its first bookmark.
	SilenceTimeout time.Duration
	Ownership      merge.Ownership
	// Same reports whether readers see no difference between two states of an item.
	Same func(a, b merge.Item) bool
	// Ended is ViewConfig.Ended of package merge.
	Ended func(merge.Item) merge.Item
}

// Stream returns the next message, or why there are no more.
type Stream func() (Message, error)

// Message is one event of a source's watch.
type Message struct {
	Type metav1.EventType
	// Item is set unless the type is BOOKMARK.
	Item merge.Item
	// ResumeToken is where to resume after this event; empty if the source cannot resume there.
	ResumeToken string
	Bookmark    *metav1.Bookmark
}

// Hub shares the streams. Make it with NewHub; it is safe for concurrent use.
type Hub struct {
	cfg    Config
	joined signal // wakes Run
	// life ends when Run ends.
	life context.Context
	end  context.CancelCauseFunc

	mu      sync.Mutex // guards the fields below
	feed    *feed      // nil while there are no streams
	readers int
	left    time.Time // when the last reader left, while there is none
}

// NewHub returns a Hub. It starts nothing.
func NewHub(cfg Config) *Hub {
	h := &Hub{cfg: cfg, joined: newSignal()}
	h.life, h.end = context.WithCancelCause(context.Background())
	return h
}

// Run keeps the streams until ctx ends, and returns nil after all have ended. It is called once.
func (h *Hub) Run(ctx context.Context) error {
	defer h.end(ErrStopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.joined:
		}
		if f := h.current(); f != nil { // the reader that raised the signal may have left
			h.serve(ctx, f)
		}
	}
}

// Request is one watch call.
type Request struct {
	// Method, Arguments and ResumeToken are those of the call; see package watchcache.
	Method, Arguments, ResumeToken string
	// Select says whether the reader wants an item; nil selects all.
	Select func(merge.Item) bool
}

// Event is one event of a watch call.
type Event = watchcache.Event[merge.Item]

// NoSourceError means that no source has reported everything. It has the failure of each.
type NoSourceError struct{ Failures []fanout.Failure }

func (e NoSourceError) Error() string { return "no replica answered" }

// Serve answers one watch call: it waits until each source has reported everything or failed, and
// sends events until ctx ends or send fails. It returns NoSourceError if no source has reported,
// ErrStopped, the errors of package watchcache, the cause of ctx, or the error of send.
func (h *Hub) Serve(ctx context.Context, request Request, send func(Event) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.life, func() { cancel(ErrStopped) })()
	f := h.join()
	defer h.leave()
	if err := f.wait(ctx); err != nil {
		return err
	}
	return f.cache.Serve(ctx, watchcache.Request[merge.Item]{
		Method: request.Method, Arguments: request.Arguments, ResumeToken: request.ResumeToken, Select: request.Select,
		Bookmark: f.bookmark, BookmarkChanged: f.nextChange, Pause: readPause,
	}, send)
}

// ResumeToken returns where a watch goes on after a list that is read next from the given replica,
// or from all replicas if it is empty. It is empty while the cache may be ahead of such a list, or
// lack a part of it.
func (h *Hub) ResumeToken(method, arguments string) (token string, source string) {
	h.mu.Lock()
	f := h.feed
	h.mu.Unlock()
	if f == nil {
		return "", ""
	}
	return f.resumeToken(method, arguments)
}

func (h *Hub) current() *feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.feed
}

func (h *Hub) join() *feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.feed == nil {
		h.feed = newFeed(h.cfg)
		h.joined.raise()
	}
	h.readers++
	return h.feed
}

func (h *Hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readers--
	h.left = time.Now()
}

// drop forgets the feed if Linger has passed without a reader, and reports whether it did. Streams
// that are about to end change only the feed that no reader has.
func (h *Hub) drop() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readers > 0 || time.Since(h.left) < Linger {
		return false
	}
	h.feed = nil
	return true
}

// serve keeps the streams of a feed until Linger has passed without a reader.
func (h *Hub) serve(ctx context.Context, f *feed) {
	open := newSources(ctx, f)
	defer open.end()
	tick := time.NewTicker(lingerCheck)
	defer tick.Stop()
	if h.cfg.Leaders != nil {
		open.running.Go(func() { f.followLeaders(open.ctx) })
	}
	members, changed := h.cfg.Sources()
	setSources(f, open, members)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			members, changed = h.cfg.Sources()
			setSources(f, open, members)
		case <-tick.C:
			if h.drop() {
				return
			}
		}
	}
}

// setSources ends the streams to sources that left and opens those to new ones. The view changes
// between the two steps: it must not hear a source that left, and must know a source that it hears.
func setSources(f *feed, open *sources, members []term.Member) {
	open.drop(members)
	f.setSources(slices.Clone(members))
	open.add(members)
}

// signal wakes one waiter. A signal that is raised again before it is taken counts once.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wait returns nil for a signal, else the cause of ctx or ErrStopped.
func (s signal) wait(ctx context.Context, stopped <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-stopped:
		return ErrStopped
	case <-s:
		return nil
	}
}
