// Package exit has the exit codes of trivet and the errors that carry them, and reports an error to
// a person.
//
// A report comes from the error alone: the ErrorInfo of an RPC gives the reason in brackets, its
// message the cause. The hint comes from a table in this package, or from the API's registry of
// reasons.
package exit

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes. Usage is EX_USAGE of sysexits; shells report Interrupted after Ctrl-C.
const (
	OK           = 0   // nothing needs attention
	Findings     = 1   // answered, and something needs attention
	Undetermined = 2   // no answer, or an answer with missing parts and without findings
	Usage        = 64  // the command line is wrong
	Interrupted  = 130 // interrupted, or declined
)

// Error ends a command with a code.
type Error struct {
	// Code is the exit code of the process.
	Code int
	// Summary says what failed or was found; empty if Err says it, or if nothing is to be printed.
	Summary string
	// Err is the cause; nil if the summary has it.
	Err error
	// Try is what the user can do; empty if the reason of Err says it.
	Try string
}

func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Summary
	case e.Summary == "":
		return e.Err.Error()
	default:
		return fmt.Sprintf("%s: %s", e.Summary, e.Err)
	}
}

func (e *Error) Unwrap() error { return e.Err }

// Execute runs a command line. An error before its command begins is cobra's, about flags and
// arguments, and becomes a usage error.
func Execute(ctx context.Context, root *cobra.Command) error {
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	err := root.ExecuteContext(ctx)
	if _, coded := errors.AsType[*Error](err); !coded && !began {
		return UsageError(err)
	}
	return err
}

// CodeOf returns the exit code for the error of a command. What failed without a code gave no
// answer.
func CodeOf(err error) int {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Undetermined
}

// CodeIn is [CodeOf] for a command that ran with ctx, which an interrupt ends: an answer that is
// missing for this reason was interrupted.
func CodeIn(ctx context.Context, err error) int {
	code := CodeOf(err)
	if code == Undetermined && ctx.Err() != nil {
		return Interrupted
	}
	return code
}

// UsageError returns the error of a wrong command line, with all its problems; nil if all are nil.
func UsageError(problems ...error) error {
	err := errors.Join(problems...)
	if err == nil {
		return nil
	}
	return &Error{Code: Usage, Err: err}
}

// UnknownCommand is the RunE of a command that has only subcommands: it shows the help without
// arguments, and names similar subcommands for an unknown one.
func UnknownCommand(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return command.Help()
	}
	command.SuggestionsMinimumDistance = 2
	unknown := &Error{Code: Usage, Err: fmt.Errorf("unknown command %q for %q", args[0], command.CommandPath())}
	for i, name := range command.SuggestionsFor(args[0]) {
		if i > 0 {
			unknown.Try += ", "
		}
		unknown.Try += command.CommandPath() + " " + name
	}
	if unknown.Try == "" {
		unknown.Try = command.CommandPath() + " --help"
	}
	return unknown
}
