package api

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// All watches number their event types alike, and merge.EventType has the same numbers.
const (
	typeAdded    = int32(leasev1.WatchNodeHealthResponse_TYPE_ADDED)
	typeModified = int32(leasev1.WatchNodeHealthResponse_TYPE_MODIFIED)
	typeDeleted  = int32(leasev1.WatchNodeHealthResponse_TYPE_DELETED)
	typeBookmark = int32(leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK)
)

func kindOf[Type ~int32](t Type) fanin.Kind {
	switch int32(t) {
	case typeAdded, typeModified:
		return fanin.Put
	case typeDeleted:
		return fanin.Remove
	case typeBookmark:
		return fanin.Bookmark
	}
	return fanin.Unknown
}

// stream returns a call that opens a watch and converts its events.
func stream[Event, T any](open fanout.Call[grpc.ServerStreamingClient[Event]], convert func(*Event) fanin.Message[T]) fanout.Call[fanin.Stream[T]] {
	return func(ctx context.Context, conn grpc.ClientConnInterface) (fanin.Stream[T], error) {
		watch, err := open(ctx, conn)
		if err != nil {
			return nil, err
		}
		return func() (fanin.Message[T], error) {
			event, err := watch.Recv()
			if err != nil {
				return fanin.Message[T]{}, err
			}
			return convert(event), nil
		}, nil
	}
}

// afterFirst returns a call that opens a stream and waits for its first message, so that a replica
// that does not answer in time is skipped. The stream outlives the call and ends with ctx.
func afterFirst[T any](ctx context.Context, open fanout.Call[fanin.Stream[T]]) fanout.Call[fanin.Stream[T]] {
	return func(calling context.Context, conn grpc.ClientConnInterface) (fanin.Stream[T], error) {
		ctx, end := context.WithCancel(ctx)
		release := context.AfterFunc(calling, end)
		next, err := open(ctx, conn)
		var first fanin.Message[T]
		if err == nil {
			first, err = next()
		}
		if !release() { // the call ended first
			err = status.FromContextError(calling.Err()).Err()
		}
		if err != nil {
			end()
			return nil, err
		}
		started := false
		return func() (fanin.Message[T], error) {
			if started {
				return next()
			}
			started = true
			return first, nil
		}, nil
	}
}

// inNamespace accepts the items of a namespace by their resource name; "" and "namespaces/-" are
// all.
func inNamespace[T merge.Named](parent string) func(T) bool {
	if parent == "" || parent == "namespaces/-" {
		return func(T) bool { return true }
	}
	prefix := parent + "/"
	return func(item T) bool { return strings.HasPrefix(item.GetName(), prefix) }
}

// forward sends the events and bookmarks of a reader until it fails, and returns the error of the
// watch. The item of a bookmark is the zero T. allFailed converts the failures of all sources.
func forward[T any](
	ctx context.Context, reader *fanin.Reader[T], allFailed func([]fanout.Failure) error,
	send func(kind int32, item T, missing []fanout.Failure) error,
) error {
	for {
		batch, err := reader.Next(ctx)
		var none fanin.NoSourceError
		switch {
		case errors.As(err, &none):
			return allFailed(none.Failures)
		case err != nil:
			return watchEnded(err)
		}
		for _, event := range batch.Events {
			if err := send(int32(event.Type), event.Item, nil); err != nil {
				return err
			}
		}
		if !batch.Bookmark {
			continue
		}
		var item T
		if err := send(typeBookmark, item, batch.Missing); err != nil {
			return err
		}
	}
}
