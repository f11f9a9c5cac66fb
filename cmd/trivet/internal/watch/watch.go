// Package watch is the client of the API's watch protocol, which all collections have in common.
//
// A watch begins with all objects, continues with their changes, and survives restarts of the
// gateway: a broken stream is opened again with the last resume token. If the gateway refuses the
// token, the watch begins anew.
package watch

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

const (
	// reconnectDelay is the pause before a broken stream is opened again.
	reconnectDelay = time.Second
	// bookmarkPeriod is the longest pause between two messages of the gateway; see metav1.Bookmark.
	bookmarkPeriod = 30 * time.Second
	// expiredReason refuses a resume token.
	expiredReason = "RESUME_TOKEN_EXPIRED"
)

// Event is an event of a watch.
type Event[T any] struct {
	Type metav1.EventType
	// Item is the item after the event; absent in a bookmark.
	Item T
	// ResumeToken is where a watch can go on after the event; empty where there is no such place.
	ResumeToken string
	// Bookmark is set if Type is EVENT_TYPE_BOOKMARK.
	Bookmark *metav1.Bookmark
	// Message is the response with the event.
	Message proto.Message
}

// EndsInitial reports whether all items that existed at the start have been sent.
func (e Event[T]) EndsInitial() bool { return e.Bookmark.GetInitialEventsEnd() }

// Receive blocks until the next event of a stream.
type Receive[T any] func() (Event[T], error)

// Open opens a stream, which ends with ctx. An empty token asks for all items.
type Open[T any] func(ctx context.Context, resumeToken string) (Receive[T], error)

// Response is the response of any watch of the API.
type Response interface {
	proto.Message
	GetType() metav1.EventType
	GetResumeToken() string
	GetBookmark() *metav1.Bookmark
}

// ReceiveFrom returns the Receive of a stream, unless opening the stream failed. The function
// returns the item of a response.
func ReceiveFrom[M any, R interface {
	*M
	Response
}, T any](stream grpc.ServerStreamingClient[M], err error, item func(R) T) (Receive[T], error) {
	if err != nil {
		return nil, err
	}
	return func() (Event[T], error) {
		message, err := stream.Recv()
		if err != nil {
			return Event[T]{}, err
		}
		response := R(message)
		return Event[T]{
			Type: response.GetType(), Item: item(response), ResumeToken: response.GetResumeToken(),
			Bookmark: response.GetBookmark(), Message: response,
		}, nil
	}, nil
}

// Watch describes a watch.
type Watch[T any] struct {
	Open Open[T]
	// Timeout limits the silence of the gateway until all items are sent. Later the gateway may be
	// silent for the period of bookmarks in addition.
	Timeout time.Duration
}

// Update is what happens in a watch. Exactly one field is set.
type Update[T any] struct {
	// Anew says that a stream begins that sends all items again.
	Anew bool
	// Event is an event of the stream.
	Event *Event[T]
	// Lost is why a stream ended; another stream follows after a pause.
	Lost error
}

// Run sends updates until ctx is done. The receiver must take updates until then, or cancel ctx.
func (w Watch[T]) Run(ctx context.Context, updates chan<- Update[T]) {
	send := func(update Update[T]) bool {
		select {
		case updates <- update:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for token := ""; ; {
		if token == "" && !send(Update[T]{Anew: true}) {
			return
		}
		last, err := w.follow(ctx, token, func(event Event[T]) bool { return send(Update[T]{Event: &event}) })
		if ctx.Err() != nil {
			return
		}
		if token != "" && rpcerror.ReasonOf(err) == expiredReason {
			token = ""
			continue
		}
		token = last
		if !send(Update[T]{Lost: err}) || !backoff.Sleep(ctx, reconnectDelay) {
			return
		}
	}
}

// follow reads one stream until it ends. It returns the last token and the reason of the end, which
// is never nil.
func (w Watch[T]) follow(ctx context.Context, token string, handle func(Event[T]) bool) (last string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limitSilence := func(limit time.Duration) *time.Timer {
		return time.AfterFunc(limit, func() { cancel(fmt.Errorf("no message from the gateway for %s", limit)) })
	}
	limit := w.Timeout
	timeout := limitSilence(limit)
	defer func() { timeout.Stop() }()
	receive, err := w.Open(ctx, token)
	for err == nil {
		var event Event[T]
		if event, err = receive(); err != nil {
			break
		}
		if event.EndsInitial() {
			limit = w.Timeout + bookmarkPeriod
			timeout.Stop()
			timeout = limitSilence(limit)
		} else {
			timeout.Reset(limit)
		}
		if event.ResumeToken != "" {
			token = event.ResumeToken
		}
		if !handle(event) {
			break
		}
	}
	if ctx.Err() != nil {
		return token, context.Cause(ctx) // err is only its consequence
	}
	return token, err
}
