package apiservers

import (
	"os"
	"testing"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
)

// sidecarVariable makes this test binary a bootstrapsvc and nothing else.
const sidecarVariable = "TRIVET_APISERVERS_SIDECAR"

func TestMain(m *testing.M) {
	if os.Getenv(sidecarVariable) != "" {
		cfg := bootstrapsvc.DefaultConfig()
		os.Exit(process.Main(os.Args[1:], bootstrapsvc.Program(&cfg)))
	}
	testkit.Main(m)
}
