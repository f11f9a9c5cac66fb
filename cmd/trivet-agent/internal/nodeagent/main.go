package nodeagent

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
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/settings"
)

// Exit codes, those of the servers.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 64 // EX_USAGE of sysexits.h
)

// configKind is the kind of the configuration file.
const configKind = "AgentConfiguration"

// Main runs the program with the arguments of a command line and returns the exit code: 0 after
// SIGINT or SIGTERM, 64 for wrong settings, 1 for other errors. A second signal ends the process at
// once.
func Main(args []string) int {
	limitMemory()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action for the second signal
	return run(ctx, invocation{args: args, environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr})
}

// invocation has the inputs and outputs of a process.
type invocation struct {
	args, environ  []string
	stdout, stderr io.Writer
}

func run(ctx context.Context, call invocation) int {
	if len(call.args) > 0 && call.args[0] == "kubeconfig" {
		call.args = call.args[1:]
		return printKubeconfig(call)
	}
	cfg := DefaultConfig(call.environ)
	fs := flagSet(&cfg)
	switch {
	case slices.Contains(call.args, "--help"), slices.Contains(call.args, "-h"):
		fmt.Fprintf(call.stdout, "trivet-agent: sends the heartbeats of a node to leasesvc\n\nFlags:\n%s\n"+
			"'trivet-agent kubeconfig --help' tells how a kubelet gets to the endpoint of --kubelet-endpoint\n", fs.FlagUsages())
		return exitOK
	case slices.Contains(call.args, "--version"):
		fmt.Fprintf(call.stdout, "trivet-agent %s\n", identity.Version())
		return exitOK
	}
	problems := append(settings.Apply(fs, call.args, call.environ, configKind), cfg.Validate()...)
	if len(problems) > 0 {
		return reportProblems(call.stderr, "trivet-agent", problems)
	}
	logger := observe.NewLogger(call.stderr, cfg.Log)
	observe.Bridge(logger)
	if unknown := settings.UnknownVariables(fs, call.environ); len(unknown) > 0 {
		logger.Warn("environment variables are no flags and are ignored", "variables", unknown)
	}
	if err := Run(ctx, cfg, logger); err != nil {
		fmt.Fprintf(call.stderr, "trivet-agent: %v\n", err)
		return exitFailure
	}
	return exitOK
}

func reportProblems(w io.Writer, command string, problems []error) int {
	fmt.Fprintf(w, "%s: %d problem(s) with flags and configuration:\n", command, len(problems))
	for _, problem := range problems {
		fmt.Fprintf(w, "  %v\n", problem)
	}
	fmt.Fprintf(w, "'%s --help' lists every flag\n", command)
	return exitUsage
}

func flagSet(cfg *Config) *pflag.FlagSet {
	fs := pflag.NewFlagSet("trivet-agent", pflag.ContinueOnError)
	fs.String("config", "", "YAML file with apiVersion "+settings.APIVersion+", kind "+configKind+
		" and settings with the names of these flags; flags and TRIVET_<FLAG> variables override it")
	fs.Bool("help", false, "print this and exit")
	fs.Bool("version", false, "print the version and exit")
	cfg.RegisterFlags(fs)
	return fs
}
