package client

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
)

// CompleteFlag lets the shell complete the values of a flag, which must exist.
func CompleteFlag(command *cobra.Command, flag string, values ...string) {
	mustComplete(command, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteListFlag lets the shell complete the last of the values of a flag, which are separated by
// commas.
func CompleteListFlag(command *cobra.Command, flag string, values ...string) {
	CompleteListFlagFrom(command, flag, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	})
}

// CompleteListFlagFrom is [CompleteListFlag] with the values of another completion.
func CompleteListFlagFrom(command *cobra.Command, flag string, complete cobra.CompletionFunc) {
	mustComplete(command, flag, func(command *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before := prefix[:strings.LastIndex(prefix, ",")+1]
		given := strings.Split(before, ",")
		values, directive := complete(command, nil, prefix[len(before):])
		var completions []cobra.Completion
		for _, value := range values {
			if word, _, _ := strings.Cut(value, "\t"); !slices.Contains(given, word) {
				completions = append(completions, before+value)
			}
		}
		return completions, directive
	})
}

// CompleteFlagFrom lets the shell complete a flag, which must exist, whatever arguments precede it.
func CompleteFlagFrom(command *cobra.Command, flag string, complete cobra.CompletionFunc) {
	mustComplete(command, flag, func(command *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete(command, nil, prefix)
	})
}

func mustComplete(command *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := command.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag does not exist, or is registered twice; every test of the command fails
	}
}

// completeContext completes the contexts of the kubeconfig.
func (g *Gateway) completeContext(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return kubeaccess.Contexts(kubeaccess.Config{Kubeconfig: g.Kubeconfig, Env: g.env}), cobra.ShellCompDirectiveNoFileComp
}
