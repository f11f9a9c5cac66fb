// Package list is the common part of `trivet nodes`, `zones`, `leases`, `slices`, `apiservers`,
// `findings`, `repair list`, `repair plans` and `shards`: it lists items through the gateway page
// by page, shows one item, and watches all of them.
//
// A command gives a [Kind], which describes its items, and a [Source], which asks the gateway for
// them. Standard output has the list in the chosen format and nothing else. Counts, notes and
// missing parts go to standard error. The exit code is 1 if a listed item is critical, even if
// parts are missing; 2 if parts are missing and no listed item is critical, or if there is no
// answer; else 0.
//
// A watch ends only when it is interrupted and continues through restarts of the gateway. On a
// terminal it shows a table in place, elsewhere one line for each change; changes of ages are not
// shown. If not all rows fit on the terminal, the most severe come first, unless --sort-by orders
// them.
package list

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
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
	// State returns the state in one word; "-" if the item does not tell it.
	State func(item T) string
	// Severity returns how urgent the state is. Problem describes a critical item.
	Severity func(item T) Severity
	Problem  func(item T) string
	// CriticalWord is the adjective for critical items; empty means that they need attention.
	CriticalWord string
	// AppendOnly says that items never change and that old ones are forgotten. A watch prints each
	// item once, as a line, also on a terminal.
	AppendOnly bool
	// EmptyProblem is the error of an empty list; empty if an empty list is no problem.
	EmptyProblem string
	// Summary returns the number of items in each state.
	Summary func(items []T) string
	// WithoutVolatile returns a copy without the fields that change all the time. Two items that
	// differ only in these fields are the same to a watch. Required for a watch.
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
	Fine Severity = iota
	// Warning is for a state that may get worse, or recover by itself.
	Warning
	// Critical makes the exit code 1.
	Critical
)

// Style returns the style of a severity.
func (s Severity) Style() printer.Style {
	return [...]printer.Style{Fine: printer.Success, Warning: printer.Warning, Critical: printer.Failure}[s]
}

// Source asks the gateway for items. Each function makes one call, which ends with ctx.
type Source[T Item] struct {
	// Get returns an item by the API's name, and the whole response. Nil if the API has no such
	// method.
	Get func(ctx context.Context, name string) (T, proto.Message, error)
	// Page returns the page of a token; the first page has the empty token. Required.
	Page func(ctx context.Context, token string) (Page[T], error)
	// Response returns the API's message for a whole list. Required.
	Response func(all Page[T]) proto.Message
	// Watch opens a watch. Nil if the API has no such method.
	Watch watch.Open[T]
	// Notes returns further sentences about the list, and the errors of getting them. Optional.
	Notes func(ctx context.Context) []string
}

// Page is a part of a list, or all of it.
type Page[T Item] struct {
	Items []T
	// NextToken is the token of the next page; empty on the last page.
	NextToken string
	// ResumeToken is where a watch goes on after the list.
	ResumeToken string
	// Sources are the replicas that answered, Missing the parts that the list lacks.
	Sources []*metav1.Source
	Missing []*metav1.MissingPart
}

// Response is the response of any list of the API.
type Response interface {
	GetNextPageToken() string
	GetSources() []*metav1.Source
	GetMissing() []*metav1.MissingPart
}

// PageOf returns the page of a response, unless the call failed.
func PageOf[T Item](response Response, items []T, err error) (Page[T], error) {
	if err != nil {
		return Page[T]{}, err
	}
	page := Page[T]{Items: items, NextToken: response.GetNextPageToken(), Sources: response.GetSources(), Missing: response.GetMissing()}
	if resumable, ok := response.(interface{ GetResumeToken() string }); ok {
		page.ResumeToken = resumable.GetResumeToken()
	}
	return page, nil
}
