package list

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// Flags are the flags and the argument of every list command.
type Flags struct {
	client.Flags

	// Name is the API's name of the item in the argument; empty for all items.
	Name  string
	Watch bool
	// SortBy is a column or a JSONPath of an item; empty keeps the order of the API.
	SortBy string
}

// Command describes a list command. All fields but the optional ones are required.
type Command[T Item] struct {
	// Flags are parsed before Validate, ParseName, Kind, Source and Selects are called.
	Flags *Flags
	// Use, Aliases, Short, Long and Example are cobra's. NewCommand appends the common text to
	// Long.
	Use, Short, Long, Example string
	Aliases                   []string
	// ExitOne says for which items the exit code is 1; empty if there are none.
	ExitOne string
	// NotChanges says what a watch does not show as a change. Empty if the API has no watch.
	NotChanges string
	// RegisterFlags adds further flags; optional.
	RegisterFlags func(command *cobra.Command)
	// Filters are the names of the flags that cannot be combined with a name.
	Filters []string
	// Validate returns the problems of further flags; optional.
	Validate func() []error
	// ParseName returns the API's name for the argument; nil if the command takes none. ShortName
	// returns the argument for an item.
	ParseName func(argument string) (string, error)
	ShortName func(item T) string
	Kind      func() Kind[T]
	Source    func(conn grpc.ClientConnInterface) Source[T]
	// Selects reports whether the filters, which the source applies, select an item. Without it, a
	// watch cannot tell a deleted item from one that the filters do not select any more. Optional.
	Selects func(item T) bool
}

// commonHelp returns what the help of every list command says.
func commonHelp(exitOne string) string {
	if exitOne != "" {
		exitOne = "\n  1   " + exitOne
	}
	return `

Counts, notes and missing parts go to standard error. Ages use the clock of this machine. On a terminal
the last column is cut to the width; -o wide cuts nothing. --sort-by orders numbers, ages and times by value,
and what is unknown comes last.

Exit codes:
  0   Nothing needs attention.` + exitOne + `
  2   Not determined: no answer, or nothing that needs attention in an answer with missing parts.
  64  The command line is wrong.`
}

// NewCommand returns the command. Its errors carry their exit code and are not printed.
func NewCommand[T Item](streams printer.Streams, c Command[T]) *cobra.Command {
	command := &cobra.Command{
		Use:     c.Use,
		Aliases: c.Aliases,
		Short:   c.Short,
		Long:    c.Long + commonHelp(c.ExitOne),
		Example: c.Example,
		Args:    cobra.ArbitraryArgs, // checked with all other problems of the command line
		RunE: func(command *cobra.Command, args []string) error {
			if err := c.parse(command, args); err != nil {
				return err
			}
			return c.run(command.Context(), streams)
		},
	}
	c.Flags.Register(command, streams, "table", "wide", "name")
	fs := command.Flags()
	if c.NotChanges != "" {
		fs.BoolVarP(&c.Flags.Watch, "watch", "w", false, "Watch: in place on a terminal, elsewhere one line for each change. "+c.NotChanges)
	}
	columns := titles(c.Kind().Columns)
	fs.StringVar(&c.Flags.SortBy, "sort-by", "", "Sort by a column, one of "+strings.Join(columns, ", ")+"; or by a JSONPath of an item, such as {.name}.")
	client.CompleteFlag(command, "sort-by", columns...)
	if c.RegisterFlags != nil {
		c.RegisterFlags(command)
	}
	command.ValidArgsFunction = cobra.NoFileCompletions
	if c.ParseName != nil {
		command.ValidArgsFunction = CompleteName(&c.Flags.Flags, c.Kind, c.Source, c.ShortName)
	}
	return command
}

func (c Command[T]) parse(command *cobra.Command, args []string) error {
	problems := append(c.Flags.Validate(), checkSort(c.Flags.SortBy, c.Kind().Columns))
	if c.Flags.SortBy != "" && c.Flags.Watch && c.Flags.IsDocument() {
		problems = append(problems, fmt.Errorf("--sort-by cannot order the events of --watch with -o %s", c.Flags.Output))
	}
	if c.Validate != nil {
		problems = append(problems, c.Validate()...)
	}
	switch {
	case len(args) == 0:
	case c.ParseName == nil:
		problems = append(problems, fmt.Errorf("%s takes no arguments, got %q", command.Name(), args))
	case len(args) == 1:
		name, err := c.ParseName(args[0])
		c.Flags.Name, problems = name, append(problems, err)
		for _, filter := range c.Filters {
			if command.Flags().Changed(filter) {
				problems = append(problems, fmt.Errorf("--%s filters a list; omit it with a name", filter))
			}
		}
	default:
		problems = append(problems, fmt.Errorf("%s takes at most one name, got %q", command.Name(), args))
	}
	return exit.UsageError(problems...)
}

func (c Command[T]) run(ctx context.Context, streams printer.Streams) error {
	conn, err := c.Flags.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	l := &lister[T]{Flags: c.Flags, streams: streams, kind: c.Kind(), source: c.Source(conn), selects: c.Selects}
	switch {
	case l.Watch:
		return l.watch(ctx)
	case l.Name != "":
		return l.get(ctx)
	default:
		return l.list(ctx)
	}
}
