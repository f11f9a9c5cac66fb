package resources

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var (
	long       = flag.Bool("resources.long", false, "full sizes, beside a real kube-apiserver, with all bounds")
	agents     = flag.Int("resources.agents", 10_000, "agents that reconnect at once in the long form")
	identities = flag.Int("resources.identities", 100_000, "identities that call one server in the long form")
	outage     = flag.Duration("resources.outage", 30*time.Second, "how long etcd, and kube-apiserver, are stopped in the long form")
	out        = flag.String("resources.out", "", "page whose sections the tests that run write")
	keep       = flag.String("resources.keep", "", "directory that keeps the logs of all processes")
)

// serviceVariable makes the test binary run a service instead of the tests.
const serviceVariable = "TRIVET_RESOURCES_SERVICE"

const (
	leases    = "leasesvc"
	bootstrap = "bootstrapsvc"
	slicing   = "slicesvc"
	gateways  = "gateway"
)

func TestMain(m *testing.M) {
	if service := os.Getenv(serviceVariable); service != "" {
		os.Exit(process.Main(os.Args[1:], program(service)))
	}
	testkit.Main(m)
}

func program(service string) process.Program {
	switch service {
	case leases:
		cfg := leasesvc.DefaultConfig()
		return leasesvc.Program(&cfg)
	case bootstrap:
		cfg := bootstrapsvc.DefaultConfig()
		return bootstrapsvc.Program(&cfg)
	case slicing:
		cfg := slicesvc.DefaultConfig()
		return slicesvc.Program(&cfg)
	default:
		cfg := gateway.DefaultConfig()
		return gateway.Program(&cfg)
	}
}

// full skips a test of the long form in the short one.
func full(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("needs -resources.long")
	}
}
