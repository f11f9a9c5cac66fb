package settings

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/identity"
)

// Exit codes of every program.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 64 // EX_USAGE of sysexits.h
)

// Invocation has the inputs and outputs of a process.
type Invocation struct {
	Args, Environ  []string
	Stdout, Stderr io.Writer
}

// Main runs a program with this process's environment, standard output and standard error, and
// returns its exit code. The context ends at SIGINT or SIGTERM. A second signal ends the process at
// once.
func Main(args []string, run func(context.Context, Invocation) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action for the second signal
	return run(ctx, Invocation{Args: args, Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr})
}

// NewFlagSet returns the flags that every program has. kind is that of its configuration file.
func NewFlagSet(name, kind string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.String("config", "", "YAML file with apiVersion "+APIVersion+", kind "+kind+
		" and settings with the names of these flags; flags and TRIVET_<FLAG> variables override it")
	fs.Bool("help", false, "print this and exit")
	fs.Bool("version", false, "print the version and exit")
	return fs
}

// Answer answers --help and --version, if fs has that flag. It returns false if the program is to
// run. more is printed after the flags.
func (c Invocation) Answer(fs *pflag.FlagSet, short, more string) bool {
	switch {
	case slices.Contains(c.Args, "--help"), slices.Contains(c.Args, "-h"):
		fmt.Fprintf(c.Stdout, "%s: %s\n\nFlags:\n%s%s", fs.Name(), short, fs.FlagUsages(), more)
	case fs.Lookup("version") != nil && slices.Contains(c.Args, "--version"):
		fmt.Fprintf(c.Stdout, "%s %s\n", fs.Name(), identity.Version())
	default:
		return false
	}
	return true
}

// Fail prints the error that ended a program and returns its exit code.
func (c Invocation) Fail(name string, err error) int {
	fmt.Fprintf(c.Stderr, "%s: %v\n", name, err)
	return ExitFailure
}

// Refuse prints mistakes of the settings and returns the exit code.
func (c Invocation) Refuse(name string, problems ...error) int {
	fmt.Fprintf(c.Stderr, "%s: %d problem(s) with flags and configuration:\n", name, len(problems))
	for _, problem := range problems {
		fmt.Fprintf(c.Stderr, "  %v\n", problem)
	}
	fmt.Fprintf(c.Stderr, "'%s --help' lists every flag\n", name)
	return ExitUsage
}
