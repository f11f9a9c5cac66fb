package term

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// listTimeout bounds one list; it is long because a list after an outage meets a busy etcd.
	listTimeout = 5 * time.Second
	// resyncPeriod is how often everything is listed again although the watch goes on. It heals what no watch reports, such
	// as an etcd restored from a backup, whose revisions the watch would wait for in silence.
	resyncPeriod = 30 * time.Second
	// followRetry is the pause before following again after an error, with as much again of jitter.
	followRetry = 200 * time.Millisecond
)

// change is what became known about the followed keys.
type change struct {
	// revision of etcd up to which this is known.
	revision int64
	// whole says that entries are all keys there are; otherwise events are what changed, in order.
	whole   bool
	entries []*mvccpb.KeyValue
	events  []*clientv3.Event
	// err says that following broke off. It is tried again without anybody's help.
	err error
}

// follower delivers the contents of a span and then every change of it.
type follower struct {
	client *clientv3.Client
	span   span
	// since is the revision whose contents come first, before the newest; 0 means that none do.
	since  int64
	logger *slog.Logger
}

// run delivers changes until ctx ends, one at a time from this goroutine. After any error, compaction included, it begins
// again with the whole contents.
func (f *follower) run(ctx context.Context, deliver func(change)) {
	for ctx.Err() == nil {
		err := f.follow(ctx, deliver)
		if err == nil || ctx.Err() != nil {
			continue
		}
		f.logger.Warn("following etcd broke off; listing again", "prefixes", f.span.prefixes, "error", err)
		deliver(change{err: err})
		pause(ctx, jittered(followRetry))
	}
}

// follow delivers the contents and watches for one resync period. The watch comes first: etcd serves one that begins in the
// past only at the next tenth of a second.
func (f *follower) follow(ctx context.Context, deliver func(change)) error {
	watching, cancel := context.WithTimeout(ctx, jittered(resyncPeriod))
	defer cancel()
	watched, err := f.watch(watching, cancel)
	if err != nil {
		return err
	}
	revision, err := f.contents(ctx, deliver)
	if err != nil {
		return err
	}
	err = errClosed
	for response := range watched {
		if err = response.Err(); err != nil {
			break
		}
		if events := newer(response.Events, revision); len(events) > 0 {
			deliver(change{revision: response.Header.Revision, events: events})
		}
		err = errClosed
	}
	if watching.Err() != nil {
		return nil
	}
	return fmt.Errorf("watch %q: %w", f.span.from, err)
}

// watch opens a watch and returns when etcd has confirmed it, so that it misses nothing from then on. It calls stop, which is
// to end ctx, if that takes too long.
func (f *follower) watch(ctx context.Context, stop context.CancelFunc) (clientv3.WatchChan, error) {
	late := time.AfterFunc(listTimeout, stop)
	defer late.Stop()
	// A member cut off from the quorum must not keep us waiting on a watch that can never fire.
	watched := f.client.Watch(clientv3.WithRequireLeader(ctx), f.span.from,
		clientv3.WithRange(f.span.to), clientv3.WithCreatedNotify())
	confirmed, open := <-watched
	if err := confirmed.Err(); err != nil {
		return nil, fmt.Errorf("watch %q: %w", f.span.from, err)
	}
	if !open || !late.Stop() {
		return nil, fmt.Errorf("watch %q: etcd has not confirmed it within %v", f.span.from, listTimeout)
	}
	return watched, nil
}

// newer returns the events, which are in order, after a revision.
func newer(events []*clientv3.Event, revision int64) []*clientv3.Event {
	first := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision > revision })
	if first < 0 {
		return nil
	}
	return events[first:]
}

var errClosed = errors.New("etcd client closed the watch")

// contents delivers the newest contents, the first time after those of an earlier revision if there is one to begin with. It
// returns the revision of the newest.
func (f *follower) contents(ctx context.Context, deliver func(change)) (int64, error) {
	revisions := []int64{0}
	if f.since != 0 {
		revisions = []int64{f.since, 0}
		f.since = 0 // once only: it may be compacted by the next time
	}
	var listed change
	for _, revision := range revisions {
		var err error
		if listed, err = f.list(ctx, revision); err != nil {
			return 0, err
		}
		deliver(listed)
	}
	return listed.revision, nil
}

// list reads all prefixes as of a revision, 0 for the newest.
func (f *follower) list(ctx context.Context, revision int64) (change, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var reads []clientv3.Op
	for _, prefix := range f.span.prefixes {
		reads = append(reads, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithRev(revision)))
	}
	response, err := f.client.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return change{}, fmt.Errorf("list %q: %w", f.span.prefixes, err)
	}
	listed := change{revision: cmp.Or(revision, response.Header.Revision), whole: true}
	for _, read := range response.Responses {
		listed.entries = append(listed.entries, read.GetResponseRange().Kvs...)
	}
	return listed, nil
}

// jittered is d to 2d, so that replicas which failed together do not come back together.
func jittered(d time.Duration) time.Duration { return d + rand.N(d) }

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
