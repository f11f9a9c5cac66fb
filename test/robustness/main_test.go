package robustness

import (
	"flag"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

var (
	seeds       = flag.Int("robustness.seeds", 0, "schedules to run; 0 runs none")
	first       = flag.Uint64("robustness.first", 1, "seed of the first schedule; those that follow have the next numbers")
	each        = flag.Int("robustness.each", 0, "steps of a schedule; 0 injects each fault once")
	names       = flag.String("robustness.faults", "", "faults to draw from, by name or number, separated by commas; empty: all")
	pairs       = flag.Bool("robustness.pairs", false, "inject two faults in each step")
	replicas    = flag.Int("robustness.replicas", 2, "replicas of each service")
	agents      = flag.Int("robustness.agents", 14, "nodes with an agent")
	kubelets    = flag.Int("robustness.kubelets", 6, "nodes whose kubelet renews the Lease")
	profileName = flag.String("robustness.profile", "", "traffic: mixed, readiness, rollouts, nodes, services or quiet; empty: the seeds have them in turn")
	shrink      = flag.Int("robustness.shrink", 0, "runs that may be spent to shorten a schedule with a violation")
	other       = flag.String("robustness.other", "", "directory with the services of another build, for rolling updates; empty: this one")
	out         = flag.String("robustness.out", "", "file for the report, in Markdown")
	keep        = flag.String("robustness.keep", "", "directory that keeps the record and the logs of all processes")
	restore     = flag.String("robustness.restore", "", "after a restore of etcd: restart (the servers are restarted) or nothing; empty: no restore")
	saved       = flag.String("robustness.saved", "", "file that each run is added to, and from which the report is written: all runs of the same commit")
	kept        = flag.String("robustness.record", "", "directory of runs that -robustness.keep has kept; TestRecord judges their records again")
)

func TestMain(m *testing.M) { worldtest.Main(m) }
