package damage

import (
	"flag"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/testkit"
)

var (
	services = flag.Int("damage.services", 1000, "Services that are created and deleted while damage is done")
	long     = flag.Bool("damage.long", false, "also wait for leaks to ripen, and cut repairs at every write")
)

const (
	// soon is when what happens at once must have happened on a starved machine.
	waitTimeout = 30 * time.Second
	// starved is what a machine may add to a promise that runs all of this on two cores.
	loadMargin = 4 * time.Second
)

func TestMain(m *testing.M) { testkit.Main(m) }
