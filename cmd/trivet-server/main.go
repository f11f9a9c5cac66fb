// Command trivet-server runs one of Trivet's servers: leasesvc, bootstrapsvc, slicesvc or gateway.
//
// The base name of argv[0] selects the server, so a link leasesvc → trivet-server is the command
// leasesvc. With any other name, the first argument selects it: trivet-server leasesvc --help.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/settings"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

const (
	commandName = "trivet-server"
	// slicesvcGCPercent lets the heap of slicesvc grow by half between two collections. Go's
	// default doubles it, but most objects of slicesvc are long-lived, so the other half would be
	// used rarely.
	slicesvcGCPercent = 50
)

func main() { os.Exit(run(os.Args)) }

func run(argv []string) int {
	program, args, found := selectProgram(programs(), argv)
	if !found {
		return settings.Main(args, answer)
	}
	if program.Name == "slicesvc" && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(slicesvcGCPercent)
	}
	return process.Main(args, program)
}

// programs returns the servers, each with a configuration of its own.
func programs() []process.Program {
	lease, bootstrap, slice, front := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	return []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&front),
	}
}

// selectProgram returns the program that argv selects, and the arguments of the program. If argv
// selects none, it returns the arguments of trivet-server itself.
func selectProgram(programs []process.Program, argv []string) (program process.Program, args []string, found bool) {
	named := func(name string) bool {
		at := slices.IndexFunc(programs, func(p process.Program) bool { return p.Name == name })
		if at >= 0 {
			program = programs[at]
		}
		return at >= 0
	}
	switch {
	case named(filepath.Base(argv[0])):
		return program, argv[1:], true
	case len(argv) > 1 && named(argv[1]):
		return program, argv[2:], true
	default:
		return process.Program{}, argv[1:], false
	}
}

// answer runs trivet-server without a server.
func answer(_ context.Context, call settings.Invocation) int {
	fs := pflag.NewFlagSet(commandName, pflag.ContinueOnError)
	fs.Bool("help", false, "print this and exit")
	fs.Bool("version", false, "print the version and exit")
	var names, lines []string
	for _, program := range programs() {
		names = append(names, program.Name)
		lines = append(lines, fmt.Sprintf("  %-14s%s\n", program.Name, program.Short))
	}
	servers := "\nServers:\n" + strings.Join(lines, "") + "\n'" + commandName + " SERVER --help' lists the flags of a server.\n"
	if call.Answer(fs, "run one of Trivet's servers", servers) {
		return settings.ExitOK
	}
	return call.Refuse(commandName, fmt.Errorf("the first argument must be a server: %s", strings.Join(names, ", ")))
}
