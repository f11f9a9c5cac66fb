package simtest

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

// StartProgram runs one replica of a service, the same as its command does, until the test ends. It
// works for a cluster of that name, so that tests on one control plane do not meet, and does all
// its loops and those named.
func StartProgram(t *testing.T, cluster *devcluster.Cluster, name string, program process.Program, loops ...string) *process.Process {
	t.Helper()
	w := worldtest.New(t, worldtest.Config{Name: name, On: cluster, Plain: true})
	return w.RunInProcess(t, program, t.Output(), func(cfg *process.Config) {
		cfg.Loops, cfg.RPC.DrainTimeout = append([]string{"*"}, loops...), time.Second
	})
}
