package exit

import (
	"errors"
	"fmt"
)

// Exit codes. Usage is sysexits' EX_USAGE, Interrupted what shells report after Ctrl-C.
const (
	OK           = 0
	Findings     = 1
	Undetermined = 2
	Usage        = 64
	Interrupted  = 130
)

// Error ends a command with a code.
type Error struct {
	// Code is the process's exit code.
	Code int
	// Summary says what the command could not do or what it found; empty if there is nothing to say, or Err says it.
	Summary string
	// Err is the cause; nil if the summary is all.
	Err error
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

// CodeOf gives the exit code for what a command returned. An error that is no *Error is cobra's own: a command or flag that
// it did not understand.
func CodeOf(err error) int {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Usage
}

// UsageError is for a command line that cannot be understood; it takes all problems at once, and is nil without any.
func UsageError(problems ...error) error {
	err := errors.Join(problems...)
	if err == nil {
		return nil
	}
	return &Error{Code: Usage, Err: err}
}
