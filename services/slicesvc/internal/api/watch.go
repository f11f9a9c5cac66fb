package api

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/resumetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

const (
	// bookmarkPeriod is the longest time without a bookmark.
	bookmarkPeriod = 30 * time.Second
	// changesPause is the shortest time between two reads of the change log. A Service that changes
	// all the time is sent a few times in a second, not at each change.
	changesPause = 200 * time.Millisecond
	// initialPageSize is how many Services are listed at a time for the initial events.
	initialPageSize = 500
)

func (s *Server) WatchServiceSlices(request *slicev1.WatchServiceSlicesRequest, stream grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := s.checkAvailable(); err != nil {
		return toStatus(err)
	}
	namespace := parseParent(request.GetParent())
	w := &serviceWatch{
		Server:    s,
		namespace: namespace,
		tokens:    s.resumeTokens(namespace),
		stream:    stream,
	}
	return toStatus(w.run(request.GetResumeToken()))
}

// serviceWatch is one WatchServiceSlices call. One goroutine uses it.
type serviceWatch struct {
	*Server
	namespace string
	tokens    resumetoken.Format
	stream    grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]
	// revision is the place in the change log up to which the client knows everything.
	revision uint64
}

// run returns when the call or the server ends, or with resumetoken.ErrExpired. It reads the change
// log only after the client took the last message. So a slow client gets the newest state of each
// Service, and nothing queues up. A bookmark is made before the changes that precede it are read,
// so that it never claims too much.
func (w *serviceWatch) run(token string) error {
	source, moved := w.view()
	changed, err := w.start(token)
	if err != nil {
		return err
	}
	if err := w.sendBookmark(source, true); err != nil {
		return err
	}
	bookmark := time.NewTimer(bookmarkPeriod)
	defer bookmark.Stop()
	for {
		due, err := w.wait(changed, moved, bookmark.C)
		if err != nil {
			return err
		}
		if due {
			source, moved = w.view()
		}
		if changed, err = w.sendChanges(); err != nil {
			return err
		}
		if due {
			if err := w.sendBookmark(source, false); err != nil {
				return err
			}
			bookmark.Reset(bookmarkPeriod)
		}
	}
}

// view returns the source of a bookmark, and a channel that is closed when other shards are led
// here.
func (w *serviceWatch) view() (*metav1.Source, <-chan struct{}) {
	leaders, moved := w.leaders.current()
	return w.source(leaders), moved
}

// start sends every Service, or what changed since a resume token. The channel is closed when there
// are changes to send.
func (w *serviceWatch) start(token string) (changed <-chan struct{}, err error) {
	if token == "" {
		w.revision = w.cfg.Controller.Revision()
		during := make(chan struct{})
		close(during) // the initial events may lack changes that are made while they are sent
		return during, w.sendAll()
	}
	revisions, err := w.tokens.Parse(token, 1)
	if err != nil {
		return nil, err
	}
	w.revision = revisions[0]
	return w.sendChanges()
}

// wait blocks until there is something to send. due says that it is a bookmark.
func (w *serviceWatch) wait(changed, moved <-chan struct{}, bookmark <-chan time.Time) (due bool, err error) {
	select {
	case <-moved:
		return true, nil
	case <-bookmark:
		return true, nil
	case <-changed:
	case <-w.stream.Context().Done():
		return false, contextError(w.stream.Context())
	}
	pause := time.NewTimer(changesPause)
	defer pause.Stop()
	select {
	case <-moved:
		return true, nil
	case <-bookmark:
		return true, nil
	case <-pause.C:
		return false, nil
	case <-w.stream.Context().Done():
		return false, contextError(w.stream.Context())
	}
}

// sendAll sends every Service without a resume token: a watch cannot resume within the initial
// events.
func (w *serviceWatch) sendAll() error {
	for after := (slicecontroller.Key{}); ; {
		keys := w.cfg.Controller.KeysAfter(w.namespace, after, initialPageSize)
		leaders := w.leadersNow()
		for _, key := range keys {
			if err := w.sendService(key, leaders, metav1.EventType_EVENT_TYPE_ADDED, ""); err != nil {
				return err
			}
		}
		if len(keys) < initialPageSize {
			return nil
		}
		after = keys[len(keys)-1]
	}
}

// sendChanges sends what changed since the last call. The channel is closed at the next change.
func (w *serviceWatch) sendChanges() (changed <-chan struct{}, err error) {
	changes := w.cfg.Controller.Changes(w.revision)
	if changes.Lost {
		return nil, resumetoken.ErrExpired
	}
	leaders := w.leadersNow()
	for _, change := range changes.Services {
		if w.namespace != "" && change.Key.Namespace != w.namespace {
			continue
		}
		token := w.tokens.Encode(change.Revision)
		switch {
		case change.Deleted:
			err = w.sendDeletion(change, leaders, token)
		case change.Added:
			err = w.sendService(change.Key, leaders, metav1.EventType_EVENT_TYPE_ADDED, token)
		default:
			err = w.sendService(change.Key, leaders, metav1.EventType_EVENT_TYPE_MODIFIED, token)
		}
		if err != nil {
			return nil, err
		}
	}
	w.revision = changes.Revision
	return changes.More, nil
}

// sendService sends the current state of a Service. A Service that was deleted meanwhile is
// skipped: the change log has its deletion.
func (w *serviceWatch) sendService(key slicecontroller.Key, leaders leaders, event metav1.EventType, token string) error {
	state, ok := w.state(key)
	if !ok {
		return nil
	}
	return w.stream.Send(&slicev1.WatchServiceSlicesResponse{
		Type:          event,
		ServiceSlices: w.convertState(state, leaders),
		ResumeToken:   token,
	})
}

func (w *serviceWatch) sendDeletion(change slicecontroller.ServiceChange, leaders leaders, token string) error {
	return w.stream.Send(&slicev1.WatchServiceSlicesResponse{
		Type: metav1.EventType_EVENT_TYPE_DELETED,
		ServiceSlices: &slicev1.ServiceSlices{
			Name:  resourceName(change.Key),
			Uid:   string(change.UID),
			Owner: leaders.owner(change.Key),
		},
		ResumeToken: token,
	})
}

func (w *serviceWatch) sendBookmark(source *metav1.Source, initial bool) error {
	return w.stream.Send(&slicev1.WatchServiceSlicesResponse{
		Type:        metav1.EventType_EVENT_TYPE_BOOKMARK,
		ResumeToken: w.tokens.Encode(w.revision),
		Bookmark:    &metav1.Bookmark{InitialEventsEnd: initial, Sources: []*metav1.Source{source}},
	})
}

// contextError returns the server's reason for the end of a call, if the server ended it.
func contextError(ctx context.Context) error {
	if cause := context.Cause(ctx); rpcerror.ReasonOf(cause) != "" {
		return cause
	}
	return ctx.Err()
}
