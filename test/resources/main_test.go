package resources

import (
	"flag"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

var (
	long       = flag.Bool("resources.long", false, "full sizes, beside a real kube-apiserver, with all bounds")
	agents     = flag.Int("resources.agents", 10_000, "agents that reconnect at once in the long form")
	identities = flag.Int("resources.identities", 100_000, "identities that call one server in the long form")
	outage     = flag.Duration("resources.outage", 30*time.Second, "how long etcd, and kube-apiserver, are stopped in the long form")
	out        = flag.String("resources.out", "", "page whose sections the tests that run write")
	keep       = flag.String("resources.keep", "", "directory that keeps the logs of all processes")
)

const (
	leases    = worldtest.Leasesvc
	bootstrap = worldtest.Bootstrapsvc
	slicing   = worldtest.Slicesvc
	gateways  = worldtest.Gateway
)

func TestMain(m *testing.M) { worldtest.Main(m) }

// full skips a test of the long form in the short one.
func full(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("needs -resources.long")
	}
}
