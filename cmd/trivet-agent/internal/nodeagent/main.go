package nodeagent

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/settings"
)

// programName is that of the program, and configKind the kind of its configuration file.
const programName, configKind = "trivet-agent", "AgentConfiguration"

// Main runs the program with the arguments of a command line and returns the exit code: 0 after
// SIGINT or SIGTERM, 64 for wrong settings, 1 for other errors.
func Main(args []string) int {
	limitMemory()
	return settings.Main(args, func(ctx context.Context, call settings.Invocation) int {
		return run(ctx, call, observe.Bridge)
	})
}

// run is Main with bridge in place of observe.Bridge, which a process may call only once.
func run(ctx context.Context, call settings.Invocation, bridge func(*slog.Logger)) int {
	if len(call.Args) > 0 && call.Args[0] == "kubeconfig" {
		call.Args = call.Args[1:]
		return printKubeconfig(call)
	}
	cfg := DefaultConfig(call.Environ)
	fs := flagSet(&cfg)
	if call.Answer(fs, "sends the heartbeats of a node to leasesvc",
		"\n'trivet-agent kubeconfig --help' tells how a kubelet gets to the endpoint of --kubelet-endpoint\n") {
		return settings.ExitOK
	}
	problems := append(settings.Apply(fs, call.Args, call.Environ, configKind), cfg.Validate()...)
	if len(problems) > 0 {
		return call.Refuse(programName, problems...)
	}
	logger := observe.NewLogger(call.Stderr, cfg.Log)
	bridge(logger)
	if unknown := settings.UnknownVariables(fs, call.Environ); len(unknown) > 0 {
		logger.Warn("environment variables are no flags and are ignored", "variables", unknown)
	}
	if err := Run(ctx, cfg, logger); err != nil {
		return call.Fail(programName, err)
	}
	return settings.ExitOK
}

func flagSet(cfg *Config) *pflag.FlagSet {
	fs := settings.NewFlagSet(programName, configKind)
	cfg.RegisterFlags(fs)
	return fs
}
