package endpointslices

import (
	"flag"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// withoutSlices are all controllers but the one that slicesvc stands in for.
	withoutSlices = "*,-endpointslice-controller"
	everything    = "*"
	// patience is how long something may take that is due, on a machine that does other things,
	// too.
	patience = time.Minute
)

// options are the arguments of the test binary.
type options struct {
	manager *string
	quiet   *time.Duration
}

var arguments = options{
	manager: flag.String("manager", "", "path of kube-controller-manager; without it nothing is tested"),
	quiet:   flag.Duration("quiet", 10*time.Second, "for how long nothing may change once all has come to rest"),
}

func TestMain(m *testing.M) { testkit.Main(m) }
