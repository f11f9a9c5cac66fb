package terms

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(runReplica())
	}
	goleak.VerifyTestMain(m)
}
