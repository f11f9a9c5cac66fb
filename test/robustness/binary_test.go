package robustness

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// buildTimeout bounds the build of the services on a busy machine.
const buildTimeout = 10 * time.Minute

// services returns the binary that runs the services: this one, or one without the race detector,
// which would take most of the machine for itself.
func services(t *testing.T) string {
	t.Helper()
	if !withRace {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return self
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "services")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build`; tests with the race detector have cgo
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the services without the race detector: %v\n%s", err, output)
	}
	return binary
}
