package term

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	// since is the revision of the first list; 0 means the newest.
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

// follow lists once and watches for one resync period.
func (f *follower) follow(ctx context.Context, deliver func(change)) error {
	listed, err := f.list(ctx)
	f.since = 0 // it may be compacted by now, and what happened since then has been missed anyhow
	if err != nil {
		return err
	}
	deliver(listed)
	ctx, cancel := context.WithTimeout(ctx, jittered(resyncPeriod))
	defer cancel()
	// A member cut off from the quorum must not keep us waiting on a watch that can never fire.
	watched := f.client.Watch(clientv3.WithRequireLeader(ctx), f.span.from,
		clientv3.WithRange(f.span.to), clientv3.WithRev(listed.revision+1))
	err = errClosed
	for response := range watched {
		if err = response.Err(); err != nil {
			break
		}
		if len(response.Events) > 0 {
			deliver(change{revision: response.Header.Revision, events: response.Events})
		}
		err = errClosed
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("watch %q: %w", f.span.from, err)
}

var errClosed = errors.New("etcd client closed the watch")

// list reads all prefixes at one revision.
func (f *follower) list(ctx context.Context) (change, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var reads []clientv3.Op
	for _, prefix := range f.span.prefixes {
		reads = append(reads, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithRev(f.since)))
	}
	response, err := f.client.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return change{}, fmt.Errorf("list %q: %w", f.span.prefixes, err)
	}
	listed := change{revision: cmp.Or(f.since, response.Header.Revision), whole: true}
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
