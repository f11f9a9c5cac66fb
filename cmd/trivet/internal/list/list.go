package list

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// lister is one run of a list command.
type lister[T Item] struct {
	*Flags

	streams printer.Streams
	kind    Kind[T]
	source  Source[T]
	selects func(item T) bool // nil for all
}

// list shows all items of the source.
func (l *lister[T]) list(ctx context.Context) error {
	progress := l.Slow("reading the list of " + l.kind.Noun + "s from " + l.Gateway.Where())
	all, err := allPages(ctx, l.source, l.Timeout, progress.Count)
	progress.Stop()
	if err != nil {
		return l.NoAnswer(ctx, "list of "+l.kind.Noun+"s", err)
	}
	if err := l.sort(all.Items); err != nil {
		return client.CannotPrint(l.kind.Noun+"s", err)
	}
	if err := l.print(all, l.source.Response(all)); err != nil {
		return client.CannotPrint(l.kind.Noun+"s", err)
	}
	if l.isTable() && !l.Quiet {
		l.Note(l.kind.Summary(all.Items))
		l.Note(l.notes(ctx)...)
	}
	l.Warn(printer.Missing(all.Missing)...)
	return l.verdict(all)
}

// get shows one item.
func (l *lister[T]) get(ctx context.Context) error {
	callCtx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	progress := l.Slow("waiting for " + l.Name + " from " + l.Gateway.Where())
	item, response, err := l.source.Get(callCtx, l.Name)
	progress.Stop()
	if err != nil {
		return l.NoAnswer(ctx, "answer about "+l.Name, err)
	}
	one := Page[T]{Items: []T{item}}
	if err := l.print(one, response); err != nil {
		return client.CannotPrint(l.kind.Noun, err)
	}
	return l.verdict(one)
}

// allPages returns all pages of a list as one, and counts the items of each page at once. The
// timeout applies to each page.
func allPages[T Item](ctx context.Context, source Source[T], timeout time.Duration, count func(items int)) (Page[T], error) {
	var all Page[T]
	err := eachPage(ctx, source, timeout, func(page Page[T]) {
		all.Items = append(all.Items, page.Items...)
		count(len(all.Items))
		all.ResumeToken = cmp.Or(all.ResumeToken, page.ResumeToken) // the first page has it
		for _, replica := range page.Sources {
			all.Sources = addSource(all.Sources, replica)
		}
		for _, part := range page.Missing {
			all.Missing = addMissing(all.Missing, part)
		}
	})
	return all, err
}

func eachPage[T Item](ctx context.Context, source Source[T], timeout time.Duration, f func(Page[T])) error {
	for token := ""; ; {
		callCtx, cancel := context.WithTimeout(ctx, timeout)
		page, err := source.Page(callCtx, token)
		cancel()
		if err != nil {
			return err
		}
		f(page)
		switch page.NextToken {
		case "":
			return nil
		case token:
			return fmt.Errorf("the gateway returned the page token %q twice", token)
		}
		token = page.NextToken
	}
}

// addSource adds a replica once, with its last answer, because it may be a source of every page.
func addSource(all []*metav1.Source, source *metav1.Source) []*metav1.Source {
	for i, known := range all {
		if known.GetService() == source.GetService() && known.GetReplicaId() == source.GetReplicaId() {
			all[i] = source
			return all
		}
	}
	return append(all, source)
}

// addMissing adds a part once, with the shards of all pages, because it may be missing from every
// page.
func addMissing(all []*metav1.MissingPart, part *metav1.MissingPart) []*metav1.MissingPart {
	for i, known := range all {
		if known.GetService() != part.GetService() || known.GetReplicaId() != part.GetReplicaId() || known.GetCode() != part.GetCode() {
			continue
		}
		merged := proto.CloneOf(part)
		merged.Shards = append(merged.Shards, known.GetShards()...)
		slices.Sort(merged.Shards)
		merged.Shards = slices.Compact(merged.Shards)
		all[i] = merged
		return all
	}
	return append(all, part)
}

func (l *lister[T]) notes(ctx context.Context) []string {
	if l.source.Notes == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	return l.source.Notes(ctx)
}

// verdict returns the exit code of a list.
func (l *lister[T]) verdict(list Page[T]) error {
	var critical []T
	for _, item := range list.Items {
		if l.kind.Severity(item) == Critical {
			critical = append(critical, item)
		}
	}
	one, many := "needs attention", "need attention"
	if word := l.kind.CriticalWord; word != "" {
		one, many = "is "+word, "are "+word
	}
	var summary string
	switch {
	case len(critical) == 1:
		summary = printer.Sanitize(fmt.Sprintf("%s %s: %s", critical[0].GetName(), one, l.kind.Problem(critical[0])))
	case len(critical) > 1:
		summary = fmt.Sprintf("%d of %s %s", len(critical), printer.Count(len(list.Items), l.kind.Noun), many)
	case len(list.Missing) > 0:
		return Incomplete(list.Missing)
	case len(list.Items) == 0 && l.kind.EmptyProblem != "":
		summary = l.kind.EmptyProblem
	default:
		return nil
	}
	return &exit.Error{Code: exit.Findings, Summary: summary}
}

// Incomplete returns the error of a list that lacks parts.
func Incomplete(missing []*metav1.MissingPart) error {
	summary := "the list is incomplete: " + printer.Count(len(missing), "part is missing", "parts are missing")
	return &exit.Error{Code: exit.Undetermined, Summary: summary}
}

// print writes a list in the chosen format; response is the API's message for it.
func (l *lister[T]) print(list Page[T], response proto.Message) error {
	return l.Print(response, func() error {
		if l.Output == "name" {
			return l.printNames(list.Items...)
		}
		return l.printTable(list.Items)
	})
}

func (l *lister[T]) printNames(items ...T) error {
	var names []byte
	for _, item := range items {
		names = append(append(names, printer.Sanitize(item.GetName())...), '\n')
	}
	_, err := l.streams.Out.Write(names)
	return err
}

// printTable writes nothing for an empty list.
func (l *lister[T]) printTable(items []T) error {
	if len(items) == 0 {
		return nil
	}
	table := l.NewTable(l.titles()...)
	now := time.Now()
	for _, item := range items {
		l.addRow(table, l.kind.Row(now, item))
	}
	return l.WriteTable(table)
}

// isTable reports whether the output is a table.
func (l *lister[T]) isTable() bool { return l.Output == "table" || l.Output == "wide" }

// titles returns the titles of the shown columns.
func (l *lister[T]) titles() []string {
	return titles(slices.DeleteFunc(slices.Clone(l.kind.Columns), func(column Column) bool { return !l.shows(column) }))
}

func (l *lister[T]) addRow(table *printer.Table, cells []printer.Cell) {
	var shown []printer.Cell
	for i, column := range l.kind.Columns {
		if l.shows(column) {
			shown = append(shown, cells[i])
		}
	}
	table.Add(shown...)
}

func (l *lister[T]) shows(column Column) bool { return !column.Wide || l.Output == "wide" }
