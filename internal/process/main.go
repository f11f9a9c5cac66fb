package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/settings"
)

// Exit codes of every server.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 64 // EX_USAGE of sysexits.h
)

// Main reads the settings, runs the program and returns the exit code: 0 after SIGINT or SIGTERM,
// 64 for wrong settings, 1 for other errors. A second signal ends the process at once. Main reads
// the environment and writes to standard output and standard error.
func Main(args []string, program Program) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action for the second signal
	return run(ctx, invocation{args: args, environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr}, program)
}

// invocation has the inputs and outputs of a process.
type invocation struct {
	args, environ  []string
	stdout, stderr io.Writer
}

func run(ctx context.Context, call invocation, program Program) int {
	cfg := DefaultConfig(program)
	fs := flagSet(&cfg, program)
	switch {
	case slices.Contains(call.args, "--help"), slices.Contains(call.args, "-h"):
		fmt.Fprintf(call.stdout, "%s: %s\n\nFlags:\n%s", program.Name, program.Short, fs.FlagUsages())
		return exitOK
	case slices.Contains(call.args, "--version"):
		fmt.Fprintf(call.stdout, "%s %s\n", program.Name, identity.Version())
		return exitOK
	}
	problems := settings.Apply(fs, call.args, call.environ, configKind(program))
	problems = append(problems, cfg.Validate(program)...)
	if program.Validate != nil {
		problems = append(problems, program.Validate()...)
	}
	if len(problems) > 0 {
		reportProblems(call.stderr, program.Name, problems)
		return exitUsage
	}
	logger := observe.NewLogger(call.stderr, cfg.Log)
	observe.Bridge(logger)
	if unknown := settings.UnknownVariables(fs, call.environ); len(unknown) > 0 {
		logger.Warn("environment variables are no flags and are ignored", "variables", unknown, "service", program.Name)
	}
	p, err := New(cfg, program, logger)
	if err == nil {
		err = p.Run(ctx)
	}
	return report(call.stderr, program.Name, err)
}

// report prints why a process ended and returns its exit code.
func report(stderr io.Writer, name string, err error) int {
	var usage *UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		reportProblems(stderr, name, []error{usage.Err})
		return exitUsage
	default:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return exitFailure
	}
}

func flagSet(cfg *Config, program Program) *pflag.FlagSet {
	fs := pflag.NewFlagSet(program.Name, pflag.ContinueOnError)
	fs.SortFlags = true
	fs.String("config", "", "YAML file with apiVersion "+settings.APIVersion+", kind "+configKind(program)+
		" and settings with the names of these flags; flags and TRIVET_<FLAG> variables override it")
	fs.Bool("help", false, "print this and exit")
	fs.Bool("version", false, "print the version and exit")
	cfg.RegisterFlags(fs)
	if program.RegisterFlags != nil {
		program.RegisterFlags(fs)
	}
	return fs
}

func configKind(program Program) string {
	return strings.ToUpper(program.Name[:1]) + program.Name[1:] + "Configuration"
}

func reportProblems(w io.Writer, name string, problems []error) {
	fmt.Fprintf(w, "%s: %d problem(s) with flags and configuration:\n", name, len(problems))
	for _, problem := range problems {
		fmt.Fprintf(w, "  %v\n", problem)
	}
	fmt.Fprintf(w, "'%s --help' lists every flag\n", name)
}
