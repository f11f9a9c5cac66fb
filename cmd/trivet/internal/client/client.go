// Package inquiry is what all commands have in common that ask a gateway: the flags for it, the connection, and how they end
// when there is no answer.
package client

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// Flags are those of every such command.
type Flags struct {
	// Gateway is whom to ask.
	Gateway Config
	// Output is the form of the answer, one of those that the command knows.
	Output string
	// Color is "auto", "always" or "never".
	Color string
	// Timeout is how long one answer may take; what it is when Register is called is its default, or 10 s.
	Timeout time.Duration

	forms []string
}

// Register adds the flags to a command and lets the shell complete them. The first form is the default one.
func (f *Flags) Register(command *cobra.Command, streams printer.Streams, forms ...string) {
	f.forms = forms
	fs := command.Flags()
	f.Gateway.RegisterFlags(fs, streams.Env)
	fs.StringVarP(&f.Output, "output", "o", forms[0], fmt.Sprintf("Form of the answer: %s or %s.", strings.Join(forms[:len(forms)-1], ", "), forms[len(forms)-1]))
	fs.StringVar(&f.Color, "color", "auto", "Colour for people: auto, always or never. NO_COLOR turns auto off.")
	fs.DurationVar(&f.Timeout, "timeout", cmp.Or(f.Timeout, 10*time.Second), "How long one answer of the gateway may take.")
	Complete(command, "output", forms...)
	Complete(command, "color", colors()...)
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err) })
}

// Validate returns all problems, each naming the flag to change.
func (f *Flags) Validate() []error {
	problems := append(f.Gateway.Validate(), OneOf("--output", f.Output, f.forms...), OneOf("--color", f.Color, colors()...))
	if f.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout=%s: must be positive", f.Timeout))
	}
	return slices.DeleteFunc(problems, func(problem error) bool { return problem == nil })
}

func colors() []string { return []string{"auto", "always", "never"} }

// Connect gives a connection to the gateway, to be closed; whether the gateway is there shows with the first call. Failures of
// the connection come to light as errors of calls, so nothing is logged.
func (f *Flags) Connect() (*grpc.ClientConn, error) {
	conn, err := f.Gateway.Dial(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, exit.UsageError(err)
	}
	return conn, nil
}

// Client gives a client over a connection of its own, and what closes that.
func Client[C any](f *Flags, newClient func(grpc.ClientConnInterface) C) (client C, leave func(), err error) {
	conn, err := f.Connect()
	if err != nil {
		return client, nil, err
	}
	return newClient(conn), func() { conn.Close() }, nil
}

// Ask asks the gateway once, over a connection of its own, for as long as --timeout says.
func Ask[C, Answer any](ctx context.Context, f *Flags, newClient func(grpc.ClientConnInterface) C, call func(context.Context, C) (Answer, error)) (answer Answer, err error) {
	client, leave, err := Client(f, newClient)
	if err != nil {
		return answer, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return call(ctx, client)
}

// Unanswered ends a command that could not get what it asked for, in words such as "status".
func (f *Flags) Unanswered(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return Interrupted()
	}
	return &exit.Error{Code: exit.Undetermined, Summary: fmt.Sprintf("no %s from the gateway at %s", what, f.Gateway.Server), Err: err}
}

// Unprinted ends a command whose answer could not be written.
func Unprinted(what string, err error) error {
	return &exit.Error{Code: exit.Undetermined, Summary: "print the " + what, Err: err}
}

// Interrupted ends a command without a word: whoever pressed Ctrl-C knows.
func Interrupted() error { return &exit.Error{Code: exit.Interrupted} }

// Pause waits and says whether ctx is still alive then.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// OneOf says what is wrong with a flag that takes one of a few values; nil if nothing is.
func OneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("%s=%q: must be one of %s", flag, value, strings.Join(known, ", "))
}

// Complete lets the shell complete a flag that takes one of a few values. The flag must exist.
func Complete(command *cobra.Command, flag string, values ...string) {
	completion := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := command.RegisterFlagCompletionFunc(flag, completion); err != nil {
		panic(err) // only for a flag that does not exist, or twice for one that does: every test would find it
	}
}
