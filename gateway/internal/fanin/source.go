package fanin

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/watchcache"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

const (
	// shortestPause and longestPause bound the pause before a stream to a replica is opened again.
	shortestPause = 250 * time.Millisecond
	longestPause  = 4 * time.Second
	// longestLeaderPause is for the one source of an exclusive Hub, because another replica may
	// lead.
	longestLeaderPause = 2 * time.Second
	// stableAfter is how long a stream must have lasted for the next one to be opened without a
	// pause.
	stableAfter = time.Second
	// bookmarkPeriod is the longest time between two bookmarks of a replica. A stream that is
	// silent for three of them is opened again.
	bookmarkPeriod = 30 * time.Second
	longestSilence = 3 * bookmarkPeriod
	// reportTimeouts is for how many silence timeouts readers wait for an initial report.
	reportTimeouts = 5
	// maxItems and maxBytes bound the memory that one source can take. An encoded node of leasesvc
	// has about 300 bytes.
	maxItems = 2_000_000
	maxBytes = 512 << 20
)

var (
	errSilent   = status.Error(codes.Unavailable, "it stopped before it had reported everything")
	errStale    = status.Error(codes.Unavailable, "it sent neither an event nor a bookmark for "+longestSilence.String())
	errEndless  = status.Error(codes.ResourceExhausted, "it reports more than a cluster has")
	errUnsigned = status.Error(codes.Internal, "its bookmark names no source")
)

// sources are the open streams of a feed. They belong to the goroutine of Hub.Run.
type sources struct {
	feed    *feed
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

func newSources(ctx context.Context, f *feed) *sources {
	ctx, stop := context.WithCancel(ctx)
	return &sources{feed: f, ctx: ctx, stop: stop, open: map[process]context.CancelFunc{}}
}

// drop ends the streams to all but these members.
func (s *sources) drop(members []term.Member) {
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
func (s *sources) add(members []term.Member) {
	for _, member := range members {
		if s.open[processOf(member)] != nil {
			continue
		}
		ctx, stop := context.WithCancel(s.ctx)
		s.open[processOf(member)] = stop
		follower := &follower{feed: s.feed, source: member, exclusive: s.feed.cfg.Ownership == merge.Exclusive}
		s.running.Go(func() { follower.run(ctx) })
	}
}

// end ends all streams and waits for them.
func (s *sources) end() {
	s.stop()
	s.running.Wait()
}

// follower reads the streams of one source.
type follower struct {
	feed      *feed
	source    term.Member
	exclusive bool
	token     string // where to resume
	synced    bool   // the current stream has sent its first bookmark
	resumed   bool   // the current stream was opened with a token
	epoch     int64  // of the last bookmark
}

func (f *follower) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		_, changed := f.feed.cfg.Sources() // before Open, or a change between the two would be missed
		started := time.Now()
		err := f.follow(ctx)
		lasted := time.Since(started)
		if ctx.Err() != nil {
			return
		}
		if f.synced {
			failures = 0
		}
		ended := f.synced && !isDefect(err)
		if !ended { // what an ended stream reported stands until the next one cannot be opened
			f.feed.fail(fanout.Failure{Member: f.source, Err: err, After: lasted})
		}
		switch {
		case ended && lasted >= stableAfter:
		case f.token != "" && rpcerror.ReasonOf(err) == rpcerror.ResumeTokenExpiredReason:
			f.token = ""
		default:
			failures++
			f.wait(ctx, backoff.Exponential{Min: shortestPause, Max: f.longestPause()}.After(failures), changed)
		}
	}
}

// isDefect reports whether a stream was ended because of what it reported.
func isDefect(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, errEndless) || errors.Is(err, errUnsigned)
}

// wait waits for the pause, with jitter. For an exclusive source it ends early when the replicas
// change.
func (f *follower) wait(ctx context.Context, pause time.Duration, changed <-chan struct{}) {
	if !f.exclusive {
		changed = nil
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-time.After(backoff.Jitter(pause)):
	}
}

func (f *follower) longestPause() time.Duration {
	if f.exclusive {
		return longestLeaderPause
	}
	return longestPause
}

// follow reads one stream to its end.
func (f *follower) follow(ctx context.Context) error {
	f.synced, f.resumed = false, f.token != ""
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := f.feed.cfg.SilenceTimeout
	silence := time.AfterFunc(timeout, func() { cancel(errSilent) })
	defer func() { silence.Stop() }()
	if f.exclusive {
		silence.Stop() // Open asks several replicas and bounds itself
	}
	next, err := f.feed.cfg.Open(ctx, f.source, f.token)
	if err != nil {
		return cause(ctx, err)
	}
	silence.Reset(timeout)
	overdue := time.AfterFunc(reportTimeouts*timeout, func() { f.feed.giveUp(ctx, f.source.ID) })
	defer overdue.Stop()
	f.feed.begin(ctx, f.source.ID, f.token != "")
	for {
		message, err := next()
		if err != nil {
			return cause(ctx, err)
		}
		if err := f.apply(ctx, message); err != nil {
			return err
		}
		if f.synced && timeout != longestSilence {
			overdue.Stop()
			silence.Stop()
			timeout, silence = longestSilence, time.AfterFunc(longestSilence, func() { cancel(errStale) })
		}
		silence.Reset(timeout)
	}
}

// apply hands a message to the feed.
func (f *follower) apply(ctx context.Context, message Message) error {
	isBookmark := message.Type == metav1.EventType_EVENT_TYPE_BOOKMARK
	first := isBookmark && message.Bookmark.GetInitialEventsEnd()
	if isBookmark && len(message.Bookmark.GetSources()) == 0 {
		return errUnsigned
	}
	if isBookmark {
		epoch := message.Bookmark.GetSources()[0].GetEpoch()
		if first && f.resumed && epoch > f.epoch {
			// It may have lost a shard and claimed it again. What ended in between, elsewhere, it
			// does not report.
			return watchcache.ErrExpired
		}
		f.epoch = epoch
	}
	if items, bytes := f.feed.apply(ctx, f.source.ID, message, first); items > maxItems || bytes > maxBytes {
		return errEndless
	}
	if message.ResumeToken != "" {
		f.token = message.ResumeToken
	}
	f.synced = f.synced || first
	return nil
}

// cause replaces gRPC's error for a canceled context by the reason for which the stream was ended.
func cause(ctx context.Context, err error) error {
	if reason := context.Cause(ctx); errors.Is(reason, errSilent) || errors.Is(reason, errStale) {
		return reason
	}
	return err
}
