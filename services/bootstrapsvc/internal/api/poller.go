package api

import (
	"context"
	"sync"
	"time"

	codev1 "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/watchcache"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// pollerConfig configures a poller.
type pollerConfig struct {
	replica
	// read reads everything and puts it into the watch cache.
	read func(ctx context.Context) error
	// watch calls changed when a read may find something new. It blocks until ctx ends. It may be
	// nil.
	watch  func(ctx context.Context, changed func())
	period time.Duration
}

// poller fills a watch cache for as long as there are watches: at once, in each period, and when
// something changed. Any number of watches share one poller.
type poller struct {
	pollerConfig
	// reading holds one value while a read runs.
	reading chan struct{}

	mu      sync.Mutex // guards all below
	watches int
	stop    func()
	// readTime is when the last read that succeeded began, err why the last one failed.
	readTime time.Time
	err      error
	changed  chan struct{} // closed and replaced when err comes, goes or changes
}

func newPoller(cfg pollerConfig) *poller {
	return &poller{pollerConfig: cfg, reading: make(chan struct{}, 1), changed: make(chan struct{})}
}

// join makes the cache current and keeps it so until leave is called. It fails if the first read
// fails.
func (p *poller) join(ctx context.Context) (leave func(), err error) {
	p.mu.Lock()
	if p.watches++; p.watches == 1 {
		p.stop = p.start()
	}
	p.mu.Unlock()
	if err := p.refresh(ctx, p.period); err != nil {
		p.leave()
		return nil, err
	}
	return p.leave, nil
}

func (p *poller) leave() {
	p.mu.Lock()
	p.watches--
	stop := func() {}
	if p.watches == 0 {
		stop = p.stop
	}
	p.mu.Unlock()
	stop()
}

// start polls until the function that it returns is called.
func (p *poller) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	triggers := make(chan struct{}, 1)
	if p.watch != nil {
		running.Go(func() {
			p.watch(ctx, func() {
				select {
				case triggers <- struct{}{}:
				default:
				}
			})
		})
	}
	running.Go(func() { p.poll(ctx, triggers) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (p *poller) poll(ctx context.Context, triggers <-chan struct{}) {
	tick := time.NewTicker(p.period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-triggers:
		case <-tick.C:
		}
		_ = p.refresh(ctx, 0) // bookmarks have the error
	}
}

// refresh reads, unless the last read succeeded and is younger than an age.
func (p *poller) refresh(ctx context.Context, age time.Duration) error {
	select {
	case p.reading <- struct{}{}:
		defer func() { <-p.reading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.isYounger(age) {
		return nil
	}
	began := time.Now()
	err := p.read(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx) // says nothing about what was read
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if textOf(err) != textOf(p.err) {
		close(p.changed)
		p.changed = make(chan struct{})
	}
	p.err = err
	if err == nil {
		p.readTime = began
	}
	return err
}

func (p *poller) isYounger(age time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err == nil && time.Since(p.readTime) < age
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// bookmark says when the cache was current, and why it is not now.
func (p *poller) bookmark() *metav1.Bookmark {
	p.mu.Lock()
	defer p.mu.Unlock()
	bookmark := &metav1.Bookmark{Sources: p.sources(p.readTime)}
	if p.err != nil {
		missing := &metav1.MissingPart{
			Service: p.Service, ReplicaId: p.ReplicaID, Code: codev1.Code_INTERNAL, Message: "what is shown cannot be read again",
		}
		// The text of an error without a status is not for callers.
		if st, ok := status.FromError(p.statusOf(context.Background(), p.err)); ok {
			missing.Code, missing.Message = codev1.Code(st.Code()), st.Message()
		}
		bookmark.Missing = []*metav1.MissingPart{missing}
	}
	return bookmark
}

func (p *poller) bookmarkChanged() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// serveWatch is one watch call of a cache that the poller fills.
func serveWatch[T any](call context.Context, p *poller, cache *watchcache.Cache[T], request watchcache.Request[T], send func(watchcache.Event[T]) error) error {
	ctx, done := p.untilStop(call)
	defer done()
	leave, err := p.join(ctx)
	if err != nil {
		return p.statusOf(call, err)
	}
	defer leave()
	request.Bookmark, request.BookmarkChanged, request.Pause = p.bookmark, p.bookmarkChanged, watchPause
	return p.statusOf(call, cache.Serve(ctx, request, send))
}
