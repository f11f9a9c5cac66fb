// Package testkit gives tests a real control plane and gRPC servers as they
// run in production.
//
// A test binary that uses it has one TestMain:
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
//
// The first test that asks for the cluster starts it (some three seconds);
// all tests of the binary share it, so each works in a Namespace of its own
// and takes names for cluster-wide objects from its namespace's name. Main
// stops the cluster and fails the run if a goroutine is left.
//
// Only tests import this package. Nothing here skips a test: where the
// binaries of the control plane are missing, the test fails and says so.
package testkit

import (
	"fmt"
	"os"
	"testing"
	"time"

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

const pollEvery = 20 * time.Millisecond

// Eventually calls condition until it returns nil, and fails the test with
// its last error when that takes longer than timeout. It is for real systems;
// inside a synctest bubble, synctest.Wait says exactly when to look.
func Eventually(t testing.TB, timeout time.Duration, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", timeout, err)
		}
		time.Sleep(pollEvery)
	}
}
