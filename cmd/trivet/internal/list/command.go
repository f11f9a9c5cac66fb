package list

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// completionTime is how long a person waits for what the Tab key gives; what came until then is offered.
const completionTime = time.Second

// Completion offers the things of a list as a command's one argument, each with its state. Short makes the argument of a thing.
func Completion[T Item](flags *client.Flags, kind Kind[T], source func(*client.Flags) (Source[T], func(), error), short func(T) string) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 || len(flags.Validate()) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		things, leave, err := source(flags)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer leave()
		ctx, cancel := context.WithTimeout(command.Context(), completionTime)
		defer cancel()
		var offers []cobra.Completion
		for item := range each(ctx, things) {
			if name := short(item); strings.HasPrefix(name, begun) && name == printer.Plain(name) {
				offers = append(offers, cobra.CompletionWithDesc(name, kind.State(item)))
			}
		}
		return offers, cobra.ShellCompDirectiveNoFileComp
	}
}

// each goes through a list until it ends or fails: half a list is better than none here.
func each[T Item](ctx context.Context, source Source[T]) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		for token := ""; ; {
			page, err := source.Page(ctx, token)
			if err != nil {
				return
			}
			for _, item := range page.Items {
				if !yield(item) {
					return
				}
			}
			if page.Next == "" || page.Next == token {
				return
			}
			token = page.Next
		}
	}
}
