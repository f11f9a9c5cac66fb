package testkit

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a binary, stops the shared cluster and exits. A run
// whose tests pass still fails if the cluster cannot be stopped or if a
// goroutine is left over.
func Main(m *testing.M) {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintf(os.Stderr, "stop the shared control plane: %v\n", err)
		code = max(code, 1)
	}
	// After a failed test, leftovers are a consequence and would bury the cause.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
