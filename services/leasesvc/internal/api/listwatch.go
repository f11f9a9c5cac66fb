package api

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/internal/pagetoken"
)

const (
	defaultPageSize = 500
	maxPageSize     = 5000
)

// listLeases names the lists of leases and of nodes in page tokens. Replicas of two versions serve
// one list during an upgrade, so it must not change.
const listLeases = "trivet.lease.v1.ListLeases"

// PageSize returns the number of items of a page: the requested number up to a limit, or a default
// for 0.
func PageSize(requested int32) int {
	if requested == 0 {
		return defaultPageSize
	}
	return min(int(requested), maxPageSize)
}

// PageToken returns the token of the page after the item with the name last. arguments select the
// items of the list.
func PageToken(arguments, last string) string {
	return pagetoken.Encode(last, listLeases, arguments)
}

// ParsePageToken returns the name of the last item of the previous page, or pagetoken.ErrInvalid.
func ParsePageToken(token, arguments string) (last string, err error) {
	return pagetoken.Parse(token, listLeases, arguments)
}

// bookmarkPeriod is the longest time in which a watch sends nothing.
const bookmarkPeriod = 30 * time.Second

// Source is what a watch reads. The first events are the objects that exist, then a bookmark, then
// the changes. If a reader is slow, it may skip states of an object, except the last.
type Source[E any] interface {
	// NextWithin blocks until there are events and returns them in order. It returns none if there
	// were none for the time quiet.
	NextWithin(ctx context.Context, quiet time.Duration) ([]E, error)
	// Bookmark returns an event which says that the reader has received all events so far.
	Bookmark(ctx context.Context) (E, error)
}

// Follow sends the events of source until ctx ends or a call fails, and returns the cause. It sends
// a bookmark whenever there was no event for 30 seconds. A resumed watch gets its first bookmark as
// soon as there is no event.
func Follow[E any](ctx context.Context, source Source[E], resumed bool, send func(*E) error) error {
	quiet := bookmarkPeriod
	if resumed {
		quiet = 0
	}
	for {
		events, err := source.NextWithin(ctx, quiet)
		if err == nil && len(events) == 0 {
			var bookmark E
			bookmark, err = source.Bookmark(ctx)
			events, quiet = []E{bookmark}, bookmarkPeriod
		}
		if ctx.Err() != nil {
			return context.Cause(ctx) // SHUTTING_DOWN if the server ends its streams
		}
		if err != nil {
			return err
		}
		for i := range events {
			if err := send(&events[i]); err != nil {
				return err
			}
		}
	}
}
