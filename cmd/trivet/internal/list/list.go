package list

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Session is one run of a command that lists.
type Session[T Item] struct {
	client.Flags

	// Streams are the command's.
	Streams printer.Streams
	// NoHeaders leaves the titles of columns out.
	NoHeaders bool
	// Kind is what is listed, Source where it comes from.
	Kind   Kind[T]
	Source Source[T]
	// Wanted says whether a watch shows a thing; lists are filtered by the source.
	Wanted func(item T) bool
}

// Run watches, or shows the one thing that is named as the API names it, or everything that the source has.
func (s *Session[T]) Run(ctx context.Context, name string, watch bool) error {
	switch {
	case watch:
		return s.Watch(ctx)
	case name != "":
		return s.ShowOne(ctx, name)
	default:
		return s.Show(ctx)
	}
}

// Show lists everything that the source has.
func (s *Session[T]) Show(ctx context.Context) error {
	list, err := s.gather(ctx)
	if err != nil {
		return s.Unanswered(ctx, "list of "+s.Kind.Noun+"s", err)
	}
	if err := s.print(list); err != nil {
		return client.Unprinted(s.Kind.Noun+"s", err)
	}
	if s.tabular() {
		s.say(s.Kind.Tally(list.Items))
		s.say(s.notes(ctx)...)
	}
	s.say(absences(list.Missing)...)
	return s.verdict(list)
}

// ShowOne shows one thing, by the name of the API.
func (s *Session[T]) ShowOne(ctx context.Context, name string) error {
	asking, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	item, answer, err := s.Source.Get(asking, name)
	if err != nil {
		return s.Unanswered(ctx, "answer about "+name, err)
	}
	list := Page[T]{Items: []T{item}}
	if s.Output == "json" {
		err = s.printJSON(answer)
	} else {
		err = s.print(list)
	}
	if err != nil {
		return client.Unprinted(s.Kind.Noun, err)
	}
	return s.verdict(list)
}

// gather reads all pages.
func (s *Session[T]) gather(ctx context.Context) (Page[T], error) {
	var list Page[T]
	for token := ""; ; {
		page, err := s.ask(ctx, token)
		if err != nil {
			return Page[T]{}, err
		}
		list.Items = append(list.Items, page.Items...)
		for _, source := range page.Missing {
			list.Missing = withSource(list.Missing, source)
		}
		if page.Next == "" {
			return list, nil
		}
		if page.Next == token {
			return Page[T]{}, fmt.Errorf("the gateway gave the page token %q twice", token)
		}
		token = page.Next
	}
}

func (s *Session[T]) ask(ctx context.Context, token string) (Page[T], error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Source.Page(ctx, token)
}

func (s *Session[T]) notes(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Source.Notes(ctx)
}

// withSource adds a replica, unless it is there already: it may be missing from page after page.
func withSource(all []*gatewayv1.SourceStatus, source *gatewayv1.SourceStatus) []*gatewayv1.SourceStatus {
	for i, known := range all {
		if known.GetReplica().GetService() == source.GetReplica().GetService() && known.GetReplica().GetId() == source.GetReplica().GetId() {
			all[i] = source
			return all
		}
	}
	return append(all, source)
}

// absences says whose part is missing, and why.
func absences(missing []*gatewayv1.SourceStatus) []string {
	var lines []string
	for _, source := range missing {
		lines = append(lines, fmt.Sprintf("missing: the part of %s %s: %s: %s",
			source.GetReplica().GetService(), source.GetReplica().GetId(), source.GetCode(), source.GetMessage()))
	}
	slices.Sort(lines)
	return lines
}

// say writes lines for people beside the list.
func (s *Session[T]) say(lines ...string) {
	for _, line := range lines {
		fmt.Fprintln(s.Streams.Err, printer.Plain(line))
	}
}

// verdict turns a list into the exit code.
func (s *Session[T]) verdict(list Page[T]) error {
	var ill []T
	for _, item := range list.Items {
		if s.Kind.Concern(item) == Ill {
			ill = append(ill, item)
		}
	}
	unwell := cmp.Or(s.Kind.Unwell, "not well")
	switch {
	case len(ill) == 1:
		return &exit.Error{Code: exit.Findings, Summary: printer.Plain(fmt.Sprintf("%s is %s: %s", ill[0].GetName(), unwell, s.Kind.Trouble(ill[0])))}
	case len(ill) > 1:
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%d of %s are %s", len(ill), printer.Count(len(list.Items), s.Kind.Noun), unwell)}
	case len(list.Items) == 0 && s.Kind.Void != "":
		return &exit.Error{Code: exit.Findings, Summary: s.Kind.Void}
	case len(list.Missing) > 0:
		return &exit.Error{Code: exit.Undetermined, Summary: "the list is incomplete: " + printer.Count(len(list.Missing), "replica") + " did not answer"}
	default:
		return nil
	}
}

// tabular is whether people are to read it.
func (s *Session[T]) tabular() bool { return s.Output == "table" || s.Output == "wide" }

func byName[T Item](a, b T) int { return strings.Compare(a.GetName(), b.GetName()) }
