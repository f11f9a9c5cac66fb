package api

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
	// bookmarkPeriod is the longest time without a message.
	bookmarkPeriod = 30 * time.Second
	// changesPause is the shortest time between two reads of the change log. A Service that changes
	// all the time is sent a few times in a second, not at each change.
	changesPause = 200 * time.Millisecond
	// termsPeriod is how often a watch checks whether shards came or went.
	termsPeriod = time.Second
	// initialPageSize is how many Services are listed at a time for the initial events.
	initialPageSize = 500
)

func (s *Server) WatchServiceSlices(request *slicev1.WatchServiceSlicesRequest, stream grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := s.checkAvailable(); err != nil {
		return toStatus(err)
	}
	w := &serviceWatch{
		Server:     s,
		namespace:  parseParent(request.GetParent()),
		stream:     stream,
		sentEpochs: map[slicecontroller.Key]int64{},
	}
	return toStatus(w.run())
}

// serviceWatch is one WatchServiceSlices call. One goroutine uses it.
type serviceWatch struct {
	*Server
	namespace string
	stream    grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]
	// sentEpochs has the Services that the client knows, with the epoch that was sent last.
	sentEpochs map[slicecontroller.Key]int64
	revision   uint64
}

// run returns when the call or the server ends. It reads the change log only after the client took
// the last message. So a slow client gets the newest state of each Service, and nothing queues up.
func (w *serviceWatch) run() error {
	if err := w.sendAll(); err != nil {
		return err
	}
	if err := w.sendBookmark(); err != nil {
		return err
	}
	bookmark, terms := time.NewTimer(bookmarkPeriod), time.NewTicker(termsPeriod)
	defer bookmark.Stop()
	defer terms.Stop()
	for {
		changes := w.cfg.Controller.Changes(w.revision)
		sent, err := w.sendChanges(changes)
		if err != nil {
			return err
		}
		if sent {
			bookmark.Reset(bookmarkPeriod)
		}
		if err := w.wait(changes.More, terms.C, bookmark); err != nil {
			return err
		}
	}
}

// wait blocks until there are changes. Meanwhile it sends bookmarks, and Services whose term
// changed.
func (w *serviceWatch) wait(more <-chan struct{}, terms <-chan time.Time, bookmark *time.Timer) error {
	for {
		select {
		case <-more:
			return w.pause()
		case <-terms:
			if err := w.sendMovedShards(); err != nil {
				return err
			}
		case <-bookmark.C:
			if err := w.sendBookmark(); err != nil {
				return err
			}
			bookmark.Reset(bookmarkPeriod)
		case <-w.stream.Context().Done():
			return contextError(w.stream.Context())
		}
	}
}

func (w *serviceWatch) pause() error {
	timer := time.NewTimer(changesPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.stream.Context().Done():
		return contextError(w.stream.Context())
	}
}

// sendAll sends every Service, and a deletion for each Service that the client knows and that is
// gone.
func (w *serviceWatch) sendAll() error {
	w.revision = w.cfg.Controller.Revision()
	gone := maps.Clone(w.sentEpochs)
	for after := (slicecontroller.Key{}); ; {
		keys := w.cfg.Controller.KeysAfter(w.namespace, after, initialPageSize)
		for _, key := range keys {
			delete(gone, key)
			if err := w.sendService(key); err != nil {
				return err
			}
		}
		if len(keys) < initialPageSize {
			break
		}
		after = keys[len(keys)-1]
	}
	for key := range gone {
		if err := w.sendDeletion(slicecontroller.ServiceChange{Key: key}); err != nil {
			return err
		}
	}
	return nil
}

func (w *serviceWatch) sendChanges(changes slicecontroller.Changes) (sent bool, err error) {
	if changes.Lost {
		return true, w.sendAll()
	}
	w.revision = changes.Revision
	for _, change := range changes.Services {
		if w.namespace != "" && change.Key.Namespace != w.namespace {
			continue
		}
		if change.Deleted {
			err = w.sendDeletion(change)
		} else {
			err = w.sendService(change.Key)
		}
		if err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// sendMovedShards sends the Services of shards that this replica acquired or lost: their epoch
// changed.
func (w *serviceWatch) sendMovedShards() error {
	held := w.heldEpochs()
	var moved []slicecontroller.Key
	for key, epoch := range w.sentEpochs {
		if held[shardOf(key, len(held))] != epoch {
			moved = append(moved, key)
		}
	}
	slices.SortFunc(moved, index.CompareKeys)
	for _, key := range moved {
		if err := w.sendService(key); err != nil {
			return err
		}
	}
	return nil
}

// sendService sends the current state of a Service. A Service that was deleted meanwhile is
// skipped: the change log has its deletion.
func (w *serviceWatch) sendService(key slicecontroller.Key) error {
	epoch := w.epochOf(key)
	freshness := w.freshness(epoch)
	state, ok := w.cfg.Controller.State(key)
	if !ok {
		return nil
	}
	eventType := slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED
	if _, known := w.sentEpochs[key]; !known {
		eventType = slicev1.WatchServiceSlicesResponse_TYPE_ADDED
	}
	w.sentEpochs[key] = epoch
	message := &slicev1.WatchServiceSlicesResponse{Type: eventType, ServiceSlices: w.convertState(key, state), Freshness: freshness}
	message.ServiceSlices.Epoch = epoch // the term may have ended since
	return w.stream.Send(message)
}

func (w *serviceWatch) sendDeletion(change slicecontroller.ServiceChange) error {
	if _, known := w.sentEpochs[change.Key]; !known {
		return nil
	}
	delete(w.sentEpochs, change.Key)
	held := w.heldEpochs()
	number := shardOf(change.Key, len(held))
	return w.stream.Send(&slicev1.WatchServiceSlicesResponse{
		Type: slicev1.WatchServiceSlicesResponse_TYPE_DELETED,
		ServiceSlices: &slicev1.ServiceSlices{
			Name: resourceName(change.Key), Uid: string(change.UID), Shard: int32(number), Epoch: held[number],
		},
		Freshness: w.freshness(held[number]),
	})
}

func (w *serviceWatch) sendBookmark() error {
	return w.stream.Send(&slicev1.WatchServiceSlicesResponse{
		Type: slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK, Freshness: w.freshness(w.newestEpoch()),
	})
}

// contextError returns the server's reason for the end of a call, if the server ended it.
func contextError(ctx context.Context) error {
	if cause := context.Cause(ctx); rpcerror.ReasonOf(cause) != "" {
		return cause
	}
	return ctx.Err()
}
