// Package list is the common part of `trivet nodes`, `leases`, `slices`, `apiservers` and
// `findings`: it lists items through the gateway page by page, shows one item, and watches all of
// them.
//
// A command gives a [Kind], which describes its items, and a [Source], which asks the gateway for
// them. Standard output has the list in the chosen format and nothing else. Counts, notes and
// missing parts go to standard error. The exit code is 1 if a listed item is critical, even if
// parts are missing; 2 if parts are missing and no listed item is critical, or if there is no
// answer; else 0.
//
// A watch ends only when it is interrupted and continues through restarts of the gateway. On a
// terminal it shows a table in place, elsewhere one line for each change; changes of ages are not
// shown. If not all rows fit on the terminal, the most severe come first.
package list

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Item is one item of a list. Its name is the API's and unique.
type Item interface {
	proto.Message
	GetName() string
}

// Kind describes the items of a list. Its functions are pure and do not change their arguments.
type Kind[T Item] struct {
	// Noun is the singular, such as "node".
	Noun string
	// Columns are the columns of the table, with those of -o wide.
	Columns []Column
	// Row returns one cell for each column. Ages are relative to now.
	Row func(now time.Time, item T) []printer.Cell
	// State returns the state in one word.
	State func(item T) string
	// Severity returns how urgent the state is. Problem describes a critical item.
	Severity func(item T) Severity
	Problem  func(item T) string
	// CriticalWord is the adjective for critical items; empty means "not healthy".
	CriticalWord string
	// EmptyProblem is the error of an empty list; empty if an empty list is healthy.
	EmptyProblem string
	// DeleteHasState says that a Delete event carries the final item. A watch then shows its state
	// instead of "deleted".
	DeleteHasState bool
	// Summary returns the number of items in each state.
	Summary func(items []T) string
	// WithoutVolatile returns a copy without the fields that change all the time. Two items that
	// differ only in these fields are the same to a watch.
	WithoutVolatile func(item T) T
	// WithoutStale returns a copy without the fields that are outdated before the next event, such
	// as the time of the last heartbeat. Optional.
	WithoutStale func(item T) T
}

// Column is a column of a table.
type Column struct {
	Title string
	// Wide columns appear with -o wide only.
	Wide bool
	// State marks the column of Kind.State.
	State bool
	// MinWidth is the smallest width in a watch, so that later lines stay aligned.
	MinWidth int
}

// Severity is how urgent the state of an item is.
type Severity int

// The severities in ascending order.
const (
	Healthy Severity = iota
	// Warning is for a state that may get worse, or recover by itself.
	Warning
	// Critical makes the exit code 1.
	Critical
)

// Style returns the style of a severity.
func (s Severity) Style() printer.Style {
	return [...]printer.Style{Healthy: printer.Success, Warning: printer.Warning, Critical: printer.Failure}[s]
}

// Source asks the gateway for items. Each method makes one call, which ends with ctx.
type Source[T Item] interface {
	// Get returns an item by the API's name, and the whole response.
	Get(ctx context.Context, name string) (T, proto.Message, error)
	// Page returns the page of a token; the first page has the empty token.
	Page(ctx context.Context, token string) (Page[T], error)
	// Response returns the API's message for a whole list.
	Response(list Page[T]) proto.Message
	// Watch opens a stream of all items and their changes.
	Watch(ctx context.Context) (Receive[T], error)
	// Notes returns further sentences about the list, and the errors of getting them.
	Notes(ctx context.Context) []string
}

// NoNotes is embedded in a Source without notes.
type NoNotes struct{}

// Notes returns nothing.
func (NoNotes) Notes(context.Context) []string { return nil }

// Page is a part of a list, or all of it.
type Page[T Item] struct {
	Items []T
	// NextToken is the token of the next page; empty on the last page.
	NextToken string
	// Missing are the replicas that did not answer.
	Missing []*gatewayv1.SourceStatus
}

// Receive blocks until the next event of a watch.
type Receive[T Item] func() (Event[T], error)

// Event is an event of a watch.
type Event[T Item] struct {
	Type EventType
	// Item is the item after the event; absent in a bookmark.
	Item T
	// Missing are the replicas that did not answer; only in a bookmark.
	Missing []*gatewayv1.SourceStatus
	// Message is the message with the event; nil if a later event has the same message.
	Message proto.Message
}

// EventType is the type of an event.
type EventType int

// The types of events.
const (
	// UnknownEvent is a type of a later version of the API; it is ignored.
	UnknownEvent EventType = iota
	// Put is for an item that exists or changed.
	Put
	// Delete is for an item that no longer exists.
	Delete
	// Bookmark means that all items were sent.
	Bookmark
)

// EventTypeOf converts an event type of the API. All watches of the API use the same names.
func EventTypeOf(t fmt.Stringer) EventType {
	switch t.String() {
	case "TYPE_ADDED", "TYPE_MODIFIED":
		return Put
	case "TYPE_DELETED":
		return Delete
	case "TYPE_BOOKMARK":
		return Bookmark
	default:
		return UnknownEvent
	}
}

// ReceiveFrom returns the Receive of a stream, unless opening the stream failed.
func ReceiveFrom[Response any, T Item](stream grpc.ServerStreamingClient[Response], err error, eventOf func(*Response) Event[T]) (Receive[T], error) {
	if err != nil {
		return nil, err
	}
	return func() (Event[T], error) {
		response, err := stream.Recv()
		if err != nil {
			return Event[T]{}, err
		}
		return eventOf(response), nil
	}, nil
}
