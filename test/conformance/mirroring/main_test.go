package mirroring

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// options are the arguments of the test binary.
type options struct {
	manager *string
	sides   *string
	seed    *uint64
	history *time.Duration
}

var arguments = options{
	manager: flag.String("manager", "", "path of kube-controller-manager; without it nothing is tested"),
	sides:   flag.String("sides", "upstream,ours", "sides to run; with one side, cases compare nothing and log what they observe"),
	seed:    flag.Uint64("seed", 0, "seed of the random histories; 0: another one each time"),
	history: flag.Duration("history", 20*time.Second, "how long random histories run"),
}

// serverVariable makes the test binary a slicesvc, so that a test can kill it.
const serverVariable = "MIRRORING_TEST_RUNS_SLICESVC"

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		cfg := slicesvc.DefaultConfig()
		os.Exit(process.Main(os.Args[1:], slicesvc.Program(&cfg)))
	}
	// The cases wait more than they work. An argument takes precedence.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err) // the testing package defines the flag
	}
	testkit.Main(m)
}
