package process

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/settings"
)

// Main reads the settings, runs the program and returns the exit code: 0 after SIGINT or SIGTERM,
// 64 for wrong settings, 1 for other errors.
func Main(args []string, program Program) int {
	return settings.Main(args, func(ctx context.Context, call settings.Invocation) int {
		return run(ctx, call, program, observe.Bridge)
	})
}

// run is Main with bridge in place of observe.Bridge, which a process may call only once.
func run(ctx context.Context, call settings.Invocation, program Program, bridge func(*slog.Logger)) int {
	cfg := DefaultConfig(program)
	fs := flagSet(&cfg, program)
	if call.Answer(fs, program.Short, "") {
		return settings.ExitOK
	}
	problems := settings.Apply(fs, call.Args, call.Environ, configKind(program))
	problems = append(problems, cfg.Validate(program)...)
	if program.Validate != nil {
		problems = append(problems, program.Validate()...)
	}
	if len(problems) > 0 {
		return call.Refuse(program.Name, problems...)
	}
	cfg.Runtime = Runtime{LogLevel: observe.NewLogLevel(cfg.Log), Flags: settings.Values(fs)}
	logger := observe.NewLoggerAt(call.Stderr, cfg.Log, cfg.Runtime.LogLevel)
	bridge(logger)
	if unknown := settings.UnknownVariables(fs, call.Environ); len(unknown) > 0 {
		logger.Warn("environment variables are no flags and are ignored", "variables", unknown, "service", program.Name)
	}
	p, err := New(cfg, program, logger)
	if err == nil {
		err = p.Run(ctx)
	}
	var usage *UsageError
	switch {
	case err == nil:
		return settings.ExitOK
	case errors.As(err, &usage):
		return call.Refuse(program.Name, usage.Err)
	default:
		return call.Fail(program.Name, err)
	}
}

func flagSet(cfg *Config, program Program) *pflag.FlagSet {
	fs := settings.NewFlagSet(program.Name, configKind(program))
	cfg.RegisterFlags(fs)
	if program.RegisterFlags != nil {
		program.RegisterFlags(fs)
	}
	return fs
}

func configKind(program Program) string {
	return strings.ToUpper(program.Name[:1]) + program.Name[1:] + "Configuration"
}
