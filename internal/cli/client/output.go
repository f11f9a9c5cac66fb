package client

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// progressDelay is the default of Streams.ProgressDelay.
const progressDelay = 2 * time.Second

// OutputFlags are the flags of every command that prints an answer: its form, its colours, and what
// is omitted.
type OutputFlags struct {
	// Output is a form that was given to Register, "json", "yaml", or "jsonpath=" with a template.
	Output string
	// Color is "auto", "always" or "never".
	Color string
	// NoHeaders omits the titles of tables.
	NoHeaders bool
	// Quiet omits what is neither the answer nor an error: progress, counts and hints.
	Quiet bool

	forms   []string
	streams printer.Streams
}

// Register adds the flags and their shell completion to a command. The forms are those for people;
// the first is the default. Forms for programs are added.
func (f *OutputFlags) Register(command *cobra.Command, streams printer.Streams, forms ...string) {
	f.streams = streams
	f.forms = append(slices.DeleteFunc(slices.Clone(forms), printer.IsDocument), printer.DocumentForms()...)
	described, last := f.describedForms(), len(f.forms)-1
	fs := command.Flags()
	fs.StringVarP(&f.Output, "output", "o", f.forms[0], "Output format: "+strings.Join(described[:last], ", ")+" or "+described[last]+".")
	fs.StringVar(&f.Color, "color", "auto", "Colours: auto, always or never. auto uses them on a terminal without NO_COLOR.")
	fs.BoolVarP(&f.Quiet, "quiet", "q", false, "Print no progress, counts and hints; errors and missing parts remain.")
	if f.hasTable() {
		fs.BoolVar(&f.NoHeaders, "no-headers", false, "Omit the column titles.")
	}
	completeForm := func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		template := f.forms[last]
		if len(prefix) > len("json") && strings.HasPrefix(template, prefix) {
			return []cobra.Completion{template}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace // a template follows
		}
		return f.forms, cobra.ShellCompDirectiveNoFileComp
	}
	mustComplete(command, "output", completeForm)
	CompleteFlag(command, "color", colorModes()...)
}

// describedForms returns the forms for help and errors.
func (f *OutputFlags) describedForms() []string {
	described := slices.Clone(f.forms)
	described[len(described)-1] += "TEMPLATE"
	return described
}

func (f *OutputFlags) hasTable() bool { return slices.Contains(f.forms, "table") }

// Validate returns all problems, each with its flag.
func (f *OutputFlags) Validate() []error {
	output := printer.CheckDocument(f.Output)
	if !printer.IsDocument(f.Output) {
		output = OneOf("--output", f.Output, f.describedForms()...)
	}
	problems := []error{output, OneOf("--color", f.Color, colorModes()...)}
	return slices.DeleteFunc(problems, func(problem error) bool { return problem == nil })
}

func colorModes() []string { return []string{"auto", "always", "never"} }

// IsDocument reports whether the answer is for programs.
func (f *OutputFlags) IsDocument() bool { return printer.IsDocument(f.Output) }

// Print writes an answer for programs, or calls forPeople, which writes it for people. On a
// terminal the text of a template ends with a line break, so that an error or a prompt has its own
// line.
func (f *OutputFlags) Print(answer any, forPeople func() error) error {
	if f.streams.OutIsTerminal && printer.IsTemplate(f.Output) {
		return printer.WriteEvent(f.streams.Out, f.Output, answer)
	}
	if written, err := printer.WriteDocument(f.streams.Out, f.Output, answer); written || err != nil {
		return err
	}
	return forPeople()
}

// Colors returns the colours for standard output.
func (f *OutputFlags) Colors() printer.Colors { return f.streams.Colors(f.Color) }

// NewTable returns a table with titles, unless they are to be omitted. Its lines are cut to the
// width of a terminal, except those of -o wide.
func (f *OutputFlags) NewTable(titles ...string) *printer.Table {
	table := &printer.Table{Colors: f.Colors()}
	if f.Output != "wide" {
		table.Width = f.streams.Width()
	}
	if !f.NoHeaders && len(titles) > 0 {
		table.AddStyled(printer.Bold, titles...)
	}
	return table
}

// WriteTable writes a table to standard output.
func (f *OutputFlags) WriteTable(table *printer.Table) error {
	_, err := table.WriteTo(f.streams.Out)
	return err
}

// PrintLine writes a line to standard output.
func (f *OutputFlags) PrintLine(line string) error {
	_, err := fmt.Fprintln(f.streams.Out, printer.Sanitize(line))
	return err
}

// Note writes lines to standard error that are neither the answer nor an error.
func (f *OutputFlags) Note(lines ...string) {
	if !f.Quiet {
		f.Warn(lines...)
	}
}

// Warn writes lines to standard error, also with --quiet.
func (f *OutputFlags) Warn(lines ...string) {
	for _, line := range lines {
		fmt.Fprintln(f.streams.Err, printer.Sanitize(line))
	}
}

// Progress returns a progress for a command that was told to wait. The caller must stop it.
func (f *OutputFlags) Progress() *printer.Progress {
	return printer.StartProgress(f.streams, f.Quiet, 0)
}

// Slow returns a progress for what is fast as a rule. The caller must stop it before it writes.
func (f *OutputFlags) Slow(text string) *printer.Progress {
	progress := printer.StartProgress(f.streams, f.Quiet, cmp.Or(f.streams.ProgressDelay, progressDelay))
	progress.Set(text)
	return progress
}
