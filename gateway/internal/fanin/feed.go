package fanin

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/watchcache"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Pauses between two questions for the leaders of shards, while a shard is missing.
const (
	leadersPause = 250 * time.Millisecond
	leadersTick  = 5 * time.Second
)

// feed merges the streams of a Hub into a cache, from the first reader to the end of Linger.
type feed struct {
	cfg   Config
	cache *watchcache.Cache[merge.Item]
	// uncertain wakes followLeaders.
	uncertain signal

	mu   sync.Mutex // guards the fields below
	view *merge.View
	// failures has the last failure of each source, or errNotSynced, by id.
	failures map[string]fanout.Failure
	// leaders has the leader of each shard; known is whether a replica was asked.
	leaders []string
	known   bool
	// changed is closed and replaced when a bookmark would say something else.
	changed chan struct{}
}

func newFeed(cfg Config) *feed {
	f := &feed{
		cfg: cfg, uncertain: newSignal(), failures: map[string]fanout.Failure{}, known: cfg.Leaders == nil, changed: make(chan struct{}),
		cache: watchcache.New(watchcache.Config[merge.Item]{Name: merge.Item.GetName, Same: cfg.Same}),
	}
	f.view = merge.NewView(merge.ViewConfig{Ownership: cfg.Ownership, Sink: f.cache, Ended: cfg.Ended})
	return f
}

// wait waits until each source has reported everything or failed, and returns NoSourceError if all
// have failed.
func (f *feed) wait(ctx context.Context) error {
	for {
		changed := f.nextChange() // before the state, or a change between the two would be missed
		settled, synced, failures := f.state()
		switch {
		case settled && synced:
			return nil
		case settled:
			return NoSourceError{Failures: failures}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

func (f *feed) state() (settled, synced bool, failures []fanout.Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	synced = f.view.Synced()
	return f.view.Settled() && (f.known || !synced), synced, f.unsynced()
}

// unsynced returns the failures of the sources that are not synced, by id. The caller holds the
// lock.
func (f *feed) unsynced() []fanout.Failure {
	var failures []fanout.Failure
	for _, id := range f.view.Unsynced() {
		failures = append(failures, f.failures[id])
	}
	return failures
}

// bookmark returns the sources and what is missing now.
func (f *feed) bookmark() *metav1.Bookmark {
	f.mu.Lock()
	defer f.mu.Unlock()
	sources := f.view.Sources()
	return &metav1.Bookmark{Sources: sources, Missing: f.missing(sources)}
}

func (f *feed) missing(sources []*metav1.Source) []*metav1.MissingPart {
	missing := merge.Missing(f.cfg.Service, f.leaders, sources, fanout.Parts(f.unsynced()))
	if f.cfg.Leaders != nil && len(f.leaders) == 0 {
		missing = append(missing, merge.UnknownShards(f.cfg.Service))
	}
	if f.cfg.Absent != nil {
		missing = append(missing, f.cfg.Absent()...)
	}
	return missing
}

// resumeToken is Hub.ResumeToken.
func (f *feed) resumeToken(method, arguments string) (token, source string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sources := f.view.Sources()
	if !f.view.Settled() || len(sources) == 0 || len(f.missing(sources)) > 0 {
		return "", ""
	}
	if f.cfg.Ownership == merge.Exclusive {
		source = sources[0].GetReplicaId()
	}
	return f.cache.ResumeToken(method, arguments), source
}

func (f *feed) nextChange() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// announce wakes the readers. The caller holds the lock.
func (f *feed) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
	f.uncertain.raise()
}

func (f *feed) setSources(members []term.Member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids, failures := make([]string, len(members)), make(map[string]fanout.Failure, len(members))
	for i, member := range members {
		ids[i] = member.ID
		failures[member.ID] = fanout.Failure{Member: member, Err: errNotSynced}
		if last, known := f.failures[member.ID]; known {
			failures[member.ID] = last
		}
	}
	f.failures = failures
	f.view.SetSources(ids)
	f.announce()
}

// followLeaders asks for the leaders of the shards, and again while a shard is missing.
func (f *feed) followLeaders(ctx context.Context) {
	tick := time.NewTicker(leadersTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.uncertain:
		case <-tick.C:
		}
		if !f.lacksShards() {
			continue
		}
		leaders := f.cfg.Leaders(ctx)
		f.setLeaders(leaders)
		select {
		case <-ctx.Done():
			return
		case <-time.After(leadersPause):
		}
	}
}

// lacksShards reports whether a bookmark would be incomplete or may not know it.
func (f *feed) lacksShards() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.view.Synced() {
		return false
	}
	return len(f.leaders) == 0 || len(f.missing(f.view.Sources())) > 0
}

func (f *feed) setLeaders(leaders []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.missing(f.view.Sources())
	first := !f.known
	if f.known = true; len(leaders) > 0 {
		f.leaders = leaders
	}
	after := f.missing(f.view.Sources())
	if first || !sameParts(before, after) {
		close(f.changed) // without asking for the leaders again
		f.changed = make(chan struct{})
	}
}

func sameParts(a, b []*metav1.MissingPart) bool {
	return slices.EqualFunc(a, b, func(a, b *metav1.MissingPart) bool { return proto.Equal(a, b) })
}

// begin is called when a stream of a source is open.
func (f *feed) begin(ctx context.Context, id string, resumes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil {
		f.view.Begin(id, resumes)
	}
}

// apply changes the view by a message, unless the stream was canceled: a message may still be on
// its way. It returns the number of the items of the source and of their bytes.
func (f *feed) apply(ctx context.Context, id string, message Message, first bool) (items, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return 0, 0
	}
	switch message.Type {
	case metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED:
		f.view.Put(id, message.Item)
	case metav1.EventType_EVENT_TYPE_DELETED:
		f.view.Remove(id, message.Item)
	case metav1.EventType_EVENT_TYPE_BOOKMARK:
		before := f.missing(f.view.Sources())
		f.view.Bookmark(id, message.Bookmark.GetSources()[0], first)
		after := f.missing(f.view.Sources())
		if first || !sameParts(before, after) {
			f.announce()
		}
	}
	return f.view.SizeOf(id)
}

// giveUp stops waiting for a source that reports endlessly.
func (f *feed) giveUp(ctx context.Context, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil {
		f.view.GiveUp(id)
		f.announce()
	}
}

// fail marks a source as missing.
func (f *feed) fail(failure fanout.Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, registered := f.failures[failure.Member.ID]; registered {
		f.view.Fail(failure.Member.ID)
		f.failures[failure.Member.ID] = failure
		f.announce()
	}
}
