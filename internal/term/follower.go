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

	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// listTimeout bounds one list. It is long because etcd is busy after an outage.
	listTimeout = 5 * time.Second
	// resyncPeriod is how often everything is listed again. It finds what no watch reports, for
	// example an etcd restored from a backup, for whose revisions the watch would wait in silence.
	resyncPeriod = 30 * time.Second
	// followRetry is the pause after an error, before jitter.
	followRetry = 200 * time.Millisecond
)

// change is a list or a batch of events of the followed keys.
type change struct {
	// revision is etcd's revision of the list or of the last event.
	revision int64
	// whole says that entries are all keys. Otherwise events are the changes, in order.
	whole   bool
	entries []*mvccpb.KeyValue
	events  []*clientv3.Event
	// err says that the watch ended. The follower retries by itself.
	err error
}

// follower delivers the contents of a key range and then every change of it.
type follower struct {
	client *clientv3.Client
	keys   keyRange
	// since is a revision whose contents are delivered before the newest ones; 0 means none.
	since  int64
	logger *slog.Logger
}

// run calls deliver for each change until ctx ends. After any error, including compaction, it
// starts again with the whole contents.
func (f *follower) run(ctx context.Context, deliver func(change)) {
	for ctx.Err() == nil {
		err := f.follow(ctx, deliver)
		if err == nil || ctx.Err() != nil {
			continue
		}
		f.logger.Warn("watch of etcd ended; listing again", "prefixes", f.keys.prefixes, "error", err)
		deliver(change{err: err})
		backoff.Sleep(ctx, jittered(followRetry))
	}
}

// follow delivers the contents and watches for one resync period. It opens the watch before it
// lists, because etcd serves a watch that starts in the past with a delay of up to 100 ms.
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
	return fmt.Errorf("watch %q: %w", f.keys.from, err)
}

// watch opens a watch and returns after etcd has confirmed it. From then on the watch misses
// nothing. After listTimeout it calls stop, which must end ctx.
func (f *follower) watch(ctx context.Context, stop context.CancelFunc) (clientv3.WatchChan, error) {
	late := time.AfterFunc(listTimeout, stop)
	defer late.Stop()
	// Without WithRequireLeader, a watch on a member without a quorum would wait for ever.
	watched := f.client.Watch(clientv3.WithRequireLeader(ctx), f.keys.from,
		clientv3.WithRange(f.keys.to), clientv3.WithCreatedNotify())
	confirmed, open := <-watched
	if err := confirmed.Err(); err != nil {
		return nil, fmt.Errorf("watch %q: %w", f.keys.from, err)
	}
	if !open || !late.Stop() {
		return nil, fmt.Errorf("watch %q: etcd has not confirmed it within %v", f.keys.from, listTimeout)
	}
	return watched, nil
}

// newer returns the events after a revision. Events are in order.
func newer(events []*clientv3.Event, revision int64) []*clientv3.Event {
	first := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision > revision })
	if first < 0 {
		return nil
	}
	return events[first:]
}

var errClosed = errors.New("etcd client closed the watch")

// contents delivers the newest contents and returns their revision. The first time it delivers
// those of since before.
func (f *follower) contents(ctx context.Context, deliver func(change)) (int64, error) {
	revisions := []int64{0}
	if f.since != 0 {
		revisions = []int64{f.since, 0}
		f.since = 0 // it may be compacted by the next call
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

// list reads all prefixes as of a revision; 0 means the newest.
func (f *follower) list(ctx context.Context, revision int64) (change, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var reads []clientv3.Op
	for _, prefix := range f.keys.prefixes {
		reads = append(reads, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithRev(revision)))
	}
	response, err := f.client.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return change{}, fmt.Errorf("list %q: %w", f.keys.prefixes, err)
	}
	listed := change{revision: cmp.Or(revision, response.Header.Revision), whole: true}
	for _, read := range response.Responses {
		listed.entries = append(listed.entries, read.GetResponseRange().Kvs...)
	}
	return listed, nil
}

// jittered returns a duration from d to 2d, so that replicas do not retry together.
func jittered(d time.Duration) time.Duration { return d + rand.N(d) }
