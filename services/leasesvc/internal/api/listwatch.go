package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"time"
)

const (
	// checksumSize is the length of a checksum in bytes.
	checksumSize    = 8
	defaultPageSize = 500
	maxPageSize     = 5000
)

// ErrPageToken means that a page token was not made by PageToken for the same arguments.
var ErrPageToken = errors.New("page_token is not from a list with the same arguments; list again without it")

// PageSize returns the number of items of a page: the requested number up to a limit, or a default
// for 0.
func PageSize(requested int32) int {
	if requested == 0 {
		return defaultPageSize
	}
	return min(int(requested), maxPageSize)
}

// PageToken returns the token of the page after the item with the name last. The token starts with
// a checksum of the name and of the other arguments of the list, so that ParsePageToken detects a
// token of another list. Every replica accepts it, and it grants no access.
func PageToken(arguments, last string) string {
	return base64.RawURLEncoding.EncodeToString(append(pageChecksum(arguments, last), last...))
}

// ParsePageToken returns the name of the last item of the previous page, or ErrPageToken.
func ParsePageToken(token, arguments string) (last string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) <= checksumSize {
		return "", ErrPageToken
	}
	last = string(raw[checksumSize:])
	if !bytes.Equal(raw[:checksumSize], pageChecksum(arguments, last)) {
		return "", ErrPageToken
	}
	return last, nil
}

func pageChecksum(arguments, last string) []byte {
	return checksum("trivet.lease.v1.ListLeases", arguments, last)
}

// checksum returns checksumSize bytes that detect a token of another RPC, of other arguments, or of
// another process.
func checksum(parts ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:checksumSize]
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
