package list

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// completionTimeout is how long the shell waits after the Tab key.
const completionTimeout = time.Second

// CompleteName completes the name of an item as the only argument of a command.
func CompleteName[T Item](flags *client.Flags, kind func() Kind[T], source func(grpc.ClientConnInterface) Source[T], shortName func(T) string) cobra.CompletionFunc {
	complete := CompleteNames(flags, kind, source, shortName)
	return func(command *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(command, args, prefix)
	}
}

// CompleteNames completes the names of items as arguments of a command, each once.
func CompleteNames[T Item](flags *client.Flags, kind func() Kind[T], source func(grpc.ClientConnInterface) Source[T], shortName func(T) string) cobra.CompletionFunc {
	return Complete(flags, source, func(item T) (word, description string) { return shortName(item), kind().State(item) })
}

// Complete completes words that items of the gateway have, such as their namespaces. If the list
// fails or takes too long, the pages until then are used.
func Complete[T Item](flags *client.Flags, source func(grpc.ClientConnInterface) Source[T], wordOf func(item T) (word, description string)) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(flags.Validate()) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		conn, err := flags.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
		defer cancel()
		var completions []cobra.Completion
		known := map[string]bool{}
		_ = eachPage(ctx, source(conn), completionTimeout, func(page Page[T]) {
			for _, item := range page.Items {
				word, description := wordOf(item)
				if !known[word] && strings.HasPrefix(word, prefix) && word == printer.Sanitize(word) && !slices.Contains(args, word) {
					known[word] = true
					completions = append(completions, cobra.CompletionWithDesc(word, description))
				}
			}
		})
		return completions, cobra.ShellCompDirectiveNoFileComp
	}
}
