package list

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Item is one thing of a list. Its name is unique and that of the API.
type Item interface {
	proto.Message
	GetName() string
}

// Kind is a kind of thing. Its functions keep nothing and change nothing they are given.
type Kind[T Item] struct {
	// Noun is one of them: "node".
	Noun string
	// Columns are those of the table, the wide form's included.
	Columns []Column
	// Row is one thing's cells, one for each column; ages are as of now.
	Row func(now time.Time, item T) []printer.Cell
	// State says in a word how it fares.
	State func(item T) string
	// Concern says how much it needs a look, Trouble what is wrong with one that is Ill.
	Concern func(item T) Concern
	Trouble func(item T) string
	// Unwell is what those are that are Ill; "not well" if empty.
	Unwell string
	// Void says what is wrong when there is none at all; empty where that is as it should be.
	Void string
	// TellsEnd is whether the event of one that is gone says how it ended, which a watch then shows instead of "deleted".
	TellsEnd bool
	// Tally says how many there are in which state.
	Tally func(items []T) string
	// Quiet returns a copy without what changes by itself.
	Quiet func(item T) T
	// Watched returns what of a thing stays true until the next event: signs of life are no events.
	Watched func(item T) T
}

// Column is a column of a table.
type Column struct {
	Title string
	// Wide is whether only the wide form has it.
	Wide bool
	// State is whether it holds the word of Kind.State, which is "deleted" for what is gone, see Kind.TellsEnd.
	State bool
	// Width is how wide it is at least in a watch, so that lines that come later stay in line.
	Width int
}

// Concern is how much something needs a look.
type Concern int

// The concerns, the least first.
const (
	// None is for what is well.
	None Concern = iota
	// Doubt is for what may go wrong, or right itself.
	Doubt
	// Ill is for what is not well: it makes the exit code 1.
	Ill
)

// Source is where things come from. Its methods ask once and end with ctx.
type Source[T Item] interface {
	// Get asks for one thing by the name of the API; the message is the whole answer.
	Get(ctx context.Context, name string) (T, proto.Message, error)
	// Page asks for the part of the list behind a token, empty for the first.
	Page(ctx context.Context, token string) (Page[T], error)
	// Answer makes the message of the API that holds a whole list.
	Answer(list Page[T]) proto.Message
	// Watch asks for everything and its changes; the function waits for the next event.
	Watch(ctx context.Context) (func() (Event[T], error), error)
	// Notes says what else is to be known about the list, a sentence each; also why it is not known.
	Notes(ctx context.Context) []string
}

// Page is a list, or a part of it.
type Page[T Item] struct {
	Items []T
	// Next is the token for the next part; empty when there is none.
	Next string
	// Missing names the replicas whose part is missing.
	Missing []*gatewayv1.SourceStatus
}

// Event is one event of a watch.
type Event[T Item] struct {
	Type Type
	// Item is the thing after it happened; absent on a bookmark.
	Item T
	// Missing names the replicas whose part is missing; only on a bookmark.
	Missing []*gatewayv1.SourceStatus
	// Message is the event as it came; nil for what came in the message of a later event.
	Message proto.Message
}

// Type is what happened.
type Type int

// The types.
const (
	// Other is for what a later gateway may send; it changes nothing.
	Other Type = iota
	// Present is for what exists, or changed.
	Present
	// Deleted is for what is gone.
	Deleted
	// Bookmark says that everything has been sent.
	Bookmark
)

// TypeOf reads the type of an event, an enum of the API: every watch names its types alike.
func TypeOf(t fmt.Stringer) Type {
	switch t.String() {
	case "TYPE_ADDED", "TYPE_MODIFIED":
		return Present
	case "TYPE_DELETED":
		return Deleted
	case "TYPE_BOOKMARK":
		return Bookmark
	default:
		return Other
	}
}
