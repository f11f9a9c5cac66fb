package worldtest

import (
	"os"
	"testing"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/server"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// The servers of Trivet.
const (
	Leasesvc     = "leasesvc"
	Bootstrapsvc = "bootstrapsvc"
	Slicesvc     = "slicesvc"
	Gateway      = "gateway"
)

// Main runs the tests of a binary as testkit.Main does, or the server that package server asks
// for, which change may change.
func Main(m *testing.M, change ...func(process.Program) process.Program) {
	testkit.Main(m, func(args []string) (code int, ran bool) {
		name := os.Getenv(server.Variable)
		if name == "" {
			return 0, false
		}
		program := Program(name)
		for _, c := range change {
			program = c(program)
		}
		return process.Main(args, program), true
	})
}

// Program returns a server with its default settings.
func Program(name string) process.Program {
	switch name {
	case Leasesvc:
		cfg := leasesvc.DefaultConfig()
		return leasesvc.Program(&cfg)
	case Bootstrapsvc:
		cfg := bootstrapsvc.DefaultConfig()
		return bootstrapsvc.Program(&cfg)
	case Slicesvc:
		cfg := slicesvc.DefaultConfig()
		return slicesvc.Program(&cfg)
	default:
		cfg := gateway.DefaultConfig()
		return gateway.Program(&cfg)
	}
}
