package slicesvc

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

const (
	// bookmarkPeriod is how long a watch may be quiet.
	bookmarkPeriod = 30 * time.Second
	// watchPause is at least between two looks at what changed, so that a Service that changes all the time is told a few
	// times a second and not at each of its changes.
	watchPause = 200 * time.Millisecond
	// termsPeriod is how often a watch looks whether shards came or went.
	termsPeriod = time.Second
	// watchPage is how many Services are looked up at a time when all are told.
	watchPage = 500
)

// WatchServiceSlices sends all Services, a bookmark, and then what changes.
func (s *server) WatchServiceSlices(request *slicev1.WatchServiceSlicesRequest, wire grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := s.available(); err != nil {
		return toStatus(err)
	}
	w := &watcher{server: s, namespace: parseParent(request.GetParent()), wire: wire, told: map[slicecontroller.Key]int64{}}
	return toStatus(w.follow())
}

// watcher is one WatchServiceSlices call.
type watcher struct {
	*server
	namespace string
	wire      grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]
	// told are the Services that the reader knows of, each with the epoch that it was told of it last.
	told     map[slicecontroller.Key]int64
	revision uint64
}

// follow ends with the call or the service. What happens while a slow reader is waited for is looked at only after it: the
// reader gets the newest state of each Service, and nothing piles up.
func (w *watcher) follow() error {
	if err := w.tellAll(); err != nil {
		return err
	}
	if err := w.bookmark(); err != nil {
		return err
	}
	quiet, terms := time.NewTimer(bookmarkPeriod), time.NewTicker(termsPeriod)
	defer quiet.Stop()
	defer terms.Stop()
	for {
		changes := w.service.engine.Changes(w.revision)
		sent, err := w.tell(changes)
		if err != nil {
			return err
		}
		if sent {
			quiet.Reset(bookmarkPeriod)
		}
		if err := w.rest(changes.More, terms.C, quiet); err != nil {
			return err
		}
	}
}

// rest waits for something to tell.
func (w *watcher) rest(more <-chan struct{}, terms <-chan time.Time, quiet *time.Timer) error {
	for {
		select {
		case <-more:
			return w.pause()
		case <-terms:
			if err := w.tellMoved(); err != nil {
				return err
			}
		case <-quiet.C:
			if err := w.bookmark(); err != nil {
				return err
			}
			quiet.Reset(bookmarkPeriod)
		case <-w.wire.Context().Done():
			return endOf(w.wire.Context())
		}
	}
}

func (w *watcher) pause() error {
	timer := time.NewTimer(watchPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.wire.Context().Done():
		return endOf(w.wire.Context())
	}
}

// tellAll tells of every Service that there is, and that those are gone of which the reader knows in vain.
func (w *watcher) tellAll() error {
	w.revision = w.service.engine.Revision()
	unseen := maps.Clone(w.told)
	for after := (slicecontroller.Key{}); ; {
		keys := w.service.engine.KeysAfter(w.namespace, after, watchPage)
		for _, key := range keys {
			delete(unseen, key)
			if err := w.put(key); err != nil {
				return err
			}
		}
		if len(keys) < watchPage {
			break
		}
		after = keys[len(keys)-1]
	}
	for key := range unseen {
		if err := w.remove(slicecontroller.Changed{Key: key}); err != nil {
			return err
		}
	}
	return nil
}

// tell tells what changed.
func (w *watcher) tell(changes slicecontroller.Changes) (sent bool, err error) {
	if changes.Lost {
		return true, w.tellAll()
	}
	w.revision = changes.Revision
	for _, changed := range changes.Services {
		if w.namespace != "" && changed.Key.Namespace != w.namespace {
			continue
		}
		if changed.Gone {
			err = w.remove(changed)
		} else {
			err = w.put(changed.Key)
		}
		if err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// tellMoved tells anew of the Services whose shard was taken over or given up here: what is said of them is said under another
// term.
func (w *watcher) tellMoved() error {
	held := w.service.heldEpochs()
	var moved []slicecontroller.Key
	for key, epoch := range w.told {
		if held[w.service.shardOf(key)] != epoch {
			moved = append(moved, key)
		}
	}
	slices.SortFunc(moved, index.CompareKeys)
	for _, key := range moved {
		if err := w.put(key); err != nil {
			return err
		}
	}
	return nil
}

// put tells of a Service as it is now. One that went meanwhile is passed over: that it is gone will be among the changes.
func (w *watcher) put(key slicecontroller.Key) error {
	epoch := w.service.epochOf(key)
	freshness := w.freshness(epoch)
	state, ok := w.service.engine.State(key)
	if !ok {
		return nil
	}
	what := slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED
	if _, known := w.told[key]; !known {
		what = slicev1.WatchServiceSlicesResponse_TYPE_ADDED
	}
	w.told[key] = epoch
	message := &slicev1.WatchServiceSlicesResponse{Type: what, ServiceSlices: w.convert(key, state), Freshness: freshness}
	message.ServiceSlices.Epoch = epoch // the term may have ended since
	return w.wire.Send(message)
}

func (w *watcher) remove(changed slicecontroller.Changed) error {
	if _, known := w.told[changed.Key]; !known {
		return nil
	}
	delete(w.told, changed.Key)
	epoch := w.service.epochOf(changed.Key)
	return w.wire.Send(&slicev1.WatchServiceSlicesResponse{
		Type: slicev1.WatchServiceSlicesResponse_TYPE_DELETED,
		ServiceSlices: &slicev1.ServiceSlices{
			Name: resourceName(changed.Key.Namespace, changed.Key.Name), Uid: string(changed.UID),
			Shard: int32(w.service.shardOf(changed.Key)), Epoch: epoch,
		},
		Freshness: w.freshness(epoch),
	})
}

func (w *watcher) bookmark() error {
	return w.wire.Send(&slicev1.WatchServiceSlicesResponse{
		Type: slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK, Freshness: w.freshness(w.service.newestEpoch()),
	})
}

// endOf tells why a call's context ended: with the server, or with the caller.
func endOf(ctx context.Context) error {
	if cause := context.Cause(ctx); rpcerror.ReasonOf(cause) != "" {
		return cause
	}
	return ctx.Err()
}
