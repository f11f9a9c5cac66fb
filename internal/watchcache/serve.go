package watchcache

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/resumetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// bookmarkPeriod is the longest time without a bookmark.
const bookmarkPeriod = 30 * time.Second

// ErrExpired says that the cache cannot resume at a token: RESUME_TOKEN_EXPIRED, a complete RPC
// error.
var ErrExpired = resumetoken.ErrExpired

// ErrTooSlow says that a watch is so far behind that a deletion that it has not sent is forgotten:
// WATCH_TOO_SLOW, a complete RPC error.
var ErrTooSlow = rpcerror.New(codes.ResourceExhausted, rpcerror.WatchTooSlowReason,
	"the watch is too far behind the changes; watch again without resume_token, and read faster")

// Request is what a watch call asks for. All fields but Method are optional.
type Request[T any] struct {
	// Method is the full name of the RPC. Arguments are the values that Select depends on, in one
	// text. A token is valid for the same Method and Arguments only.
	Method, Arguments string
	// ResumeToken is where to go on; empty for all objects.
	ResumeToken string
	// Select says whether the reader wants an object in this state. It must depend on the state
	// alone. Nil selects all.
	Select func(T) bool
	// Bookmark returns a new message with the sources and missing parts of now. Objects of a source
	// must be put into the cache before Bookmark has the source.
	Bookmark func() *metav1.Bookmark
	// BookmarkChanged returns a channel that is closed when Bookmark returns something that readers
	// should know at once. It is called before Bookmark.
	BookmarkChanged func() <-chan struct{}
	// Pause is the shortest time between two steps of reading changes. It bounds what an object
	// that changes all the time costs.
	Pause time.Duration
}

// Event is one event of a watch.
type Event[T any] struct {
	Type metav1.EventType
	// Item is the object: after the change, or its last state if it is DELETED. It is the zero
	// value for a bookmark. The reader must not modify it.
	Item T
	// ResumeToken is where a watch goes on after this event.
	ResumeToken string
	// Bookmark is set on a bookmark only.
	Bookmark *metav1.Bookmark
}

// Serve sends events until ctx ends or send fails: one watch call. It calls send from this
// goroutine and does not read on while send blocks. It returns context.Cause(ctx), [ErrExpired],
// [ErrTooSlow] or the error of send.
func (c *Cache[T]) Serve(ctx context.Context, request Request[T], send func(Event[T]) error) error {
	r, err := c.newReader(request, send)
	if err != nil {
		return err
	}
	if err := r.advance(ctx, r.start); err != nil {
		return err
	}
	if err := r.sendBookmark(ctx, true); err != nil {
		return err
	}
	for {
		if err := r.next(ctx); err != nil {
			return err
		}
	}
}

// reader is one call of Serve. One goroutine uses it.
type reader[T any] struct {
	cache   *Cache[T]
	request Request[T]
	send    func(Event[T]) error
	format  resumetoken.Format
	walk    walk
	// start is the newest revision when the call began. resumed says that the call has a token.
	start   uint64
	resumed bool
	buffer  []change[T]
	// has says for each object that the filter has decided on whether the reader has it. It is nil
	// without a filter.
	has map[string]bool
	// bookmarkChanged belongs to the last bookmark, which was sent at bookmarked. read is the time
	// of the last step.
	bookmarkChanged  <-chan struct{}
	bookmarked, read time.Time
}

func (c *Cache[T]) newReader(request Request[T], send func(Event[T]) error) (*reader[T], error) {
	start := c.newest()
	r := &reader[T]{
		cache: c, request: request, send: send,
		format:  c.format(request.Method, request.Arguments),
		walk:    walk{to: start},
		start:   start,
		resumed: request.ResumeToken != "",
	}
	if request.Select != nil {
		r.has = map[string]bool{}
	}
	if !r.resumed {
		return r, nil
	}
	revisions, err := r.format.Parse(request.ResumeToken, 3)
	if err != nil {
		return nil, err
	}
	r.walk = walk{from: revisions[0], to: revisions[1], at: revisions[2]}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.walk.at > r.walk.to || r.walk.to > start || !r.walk.complete(c.forgotten) {
		return nil, ErrExpired
	}
	return r, nil
}

// advance sends the changes up to a revision.
func (r *reader[T]) advance(ctx context.Context, to uint64) error {
	for r.walk.at < to {
		if r.walk.done() {
			r.walk = r.nextWalk(to)
		}
		if err := r.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// nextWalk returns the walk from the end of the current one. The first walk after a token shows
// also objects that were created and deleted within it, because the reader may have them from a
// list that was read after the token.
func (r *reader[T]) nextWalk(to uint64) walk {
	if r.resumed && r.walk.at < r.start {
		return walk{from: to, to: to, at: r.walk.at}
	}
	return walk{from: r.walk.at, to: to, at: r.walk.at}
}

func (r *reader[T]) step(ctx context.Context) error {
	changes, after, complete := r.cache.read(r.walk, r.buffer[:0])
	if !complete {
		return ErrTooSlow
	}
	r.read = time.Now()
	for _, ch := range changes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		event := r.filter(ch)
		if event == metav1.EventType_EVENT_TYPE_UNSPECIFIED {
			continue
		}
		r.walk.at = ch.at
		if err := r.send(Event[T]{Type: event, Item: ch.state, ResumeToken: r.token()}); err != nil {
			return err
		}
	}
	r.walk = after
	clear(changes) // the states must not live as long as the reader
	r.buffer = changes
	return nil
}

func (r *reader[T]) token() string {
	from := r.walk.from
	if r.walk.done() {
		from = r.walk.to // one token for the same position, whatever the way to it
	}
	return r.format.Encode(from, r.walk.to, r.walk.at)
}

// filter returns the event that a change is for a reader that wants only what Select selects.
func (r *reader[T]) filter(ch change[T]) metav1.EventType {
	if r.request.Select == nil {
		return ch.event
	}
	name := r.cache.cfg.Name(ch.state)
	has, decided := r.has[name]
	switch {
	case ch.event != metav1.EventType_EVENT_TYPE_DELETED && r.request.Select(ch.state):
		r.has[name] = true
		if has {
			return metav1.EventType_EVENT_TYPE_MODIFIED
		}
		return metav1.EventType_EVENT_TYPE_ADDED
	case has || !decided && r.mayHave(ch):
		if ch.created <= r.start && r.resumed {
			r.has[name] = false
		} else {
			delete(r.has, name)
		}
		return metav1.EventType_EVENT_TYPE_DELETED
	default:
		return metav1.EventType_EVENT_TYPE_UNSPECIFIED
	}
}

// mayHave says whether the reader may have an object from before its token. It has no object whose
// creation follows in an initial walk.
func (r *reader[T]) mayHave(ch change[T]) bool {
	initial := r.walk.from == 0 && ch.event == metav1.EventType_EVENT_TYPE_ADDED
	return r.resumed && ch.created <= r.start && !initial
}

// sendBookmark sends first all changes that the bookmark speaks of.
func (r *reader[T]) sendBookmark(ctx context.Context, initialEventsEnd bool) error {
	if r.request.BookmarkChanged != nil {
		r.bookmarkChanged = r.request.BookmarkChanged()
	}
	bookmark := &metav1.Bookmark{}
	if r.request.Bookmark != nil {
		bookmark = r.request.Bookmark()
	}
	bookmark.InitialEventsEnd = initialEventsEnd
	if err := r.advance(ctx, r.cache.newest()); err != nil {
		return err
	}
	r.bookmarked = time.Now()
	return r.send(Event[T]{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, ResumeToken: r.token(), Bookmark: bookmark})
}

// next waits for a change or for a reason for a bookmark, and sends it.
func (r *reader[T]) next(ctx context.Context) error {
	due := time.NewTimer(time.Until(r.bookmarked.Add(bookmarkPeriod)))
	defer due.Stop()
	select {
	case <-r.cache.changedSince(r.walk.at):
		if err := r.pause(ctx); err != nil {
			return err
		}
		return r.advance(ctx, r.cache.newest())
	case <-r.bookmarkChanged:
		if err := r.pause(ctx); err != nil {
			return err
		}
		return r.sendBookmark(ctx, false)
	case <-due.C:
		return r.sendBookmark(ctx, false)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pause returns when Request.Pause has passed since the last step or bookmark.
func (r *reader[T]) pause(ctx context.Context) error {
	last := r.read
	if r.bookmarked.After(last) {
		last = r.bookmarked
	}
	wait := time.Until(last.Add(r.request.Pause))
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
