package nodehealth

import (
	"flag"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// options are the arguments of the test binary.
type options struct {
	manager *string
	quiet   *time.Duration
}

var arguments = options{
	manager: flag.String("manager", "", "path of kube-controller-manager; without it nothing is tested"),
	quiet:   flag.Duration("quiet", time.Minute, "for how long nothing may change once all has come to rest"),
}

func TestMain(m *testing.M) { testkit.Main(m) }

// requireManager skips the test where there is no kube-controller-manager.
func requireManager(t *testing.T) {
	t.Helper()
	if *arguments.manager == "" {
		t.Skip("needs -manager=path of kube-controller-manager: run `make conformance`")
	}
}

// startManager runs kube-controller-manager with all its controllers but the one that leasesvc
// replaces, until the test ends.
func startManager(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	simtest.StartManager(t, cluster, *arguments.manager, "*,-node-lifecycle-controller")
}
