// Package testkit provides a real control plane and production gRPC servers for tests.
//
// A test binary that uses it has one TestMain:
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
//
// The first test that needs the cluster borrows one from test/lab/cmd/testrun, which lends it to
// one binary at a time. Without testrun it starts one (about 3 s). All tests of the binary share
// it, so each test uses its own Namespace and derives the names of cluster-wide objects from it.
// Main stops the cluster, and fails the run if a goroutine remains. A borrowed cluster is lent to
// another binary only when the process of this one has ended.
//
// Only tests import this package. A test fails if the binaries of the control plane are missing.
package testkit

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a binary, stops the shared cluster and exits. The run also fails if the
// cluster cannot be stopped or a goroutine remains. If one of instead runs a program in place of
// the tests, with the arguments of the process, Main exits with its code.
func Main(m *testing.M, instead ...func(args []string) (code int, ran bool)) {
	for _, run := range instead {
		if code, ran := run(os.Args[1:]); ran {
			os.Exit(code)
		}
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintf(os.Stderr, "stop the shared control plane: %v\n", err)
		code = max(code, 1)
	}
	// After a failed test, remaining goroutines are a consequence and would hide the cause.
	if code == 0 {
		if err := FindLeak(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// FindLeak returns an error if a goroutine remains that does not end soon. Package goleak waits
// half a second, which may be too short for goroutines that are about to end on a busy machine.
func FindLeak() error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		if err := goleak.Find(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

const pollEvery = 20 * time.Millisecond

// Eventually calls condition until it returns nil. After timeout it fails the test with the last
// error. Use it for real systems only; in a synctest bubble use synctest.Wait.
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

// Pause waits for real time to pass, not for a condition.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// LogBuffer is a log that a test reads while several goroutines write it. The zero value is empty.
type LogBuffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// Write implements io.Writer.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns everything that was written.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// thirdVariable is 1, 2 or 3: the third of the long tests that runs. Tests of many packages run in
// one command, so it is no flag, which other packages would not know.
const thirdVariable = "TRIVET_THIRD"

// Third returns which third of the long tests runs: 1, 2 or 3, as the commit decides in `make test`
// and `make test-system`; 0 for all of them, with THIRD= and without make.
func Third(t testing.TB) int {
	t.Helper()
	text := os.Getenv(thirdVariable)
	if text == "" {
		return 0
	}
	third, err := strconv.Atoi(text)
	if err != nil || third < 1 || third > 3 {
		t.Fatalf("%s=%q is not 1, 2 or 3", thirdVariable, text)
	}
	return third
}

// LongTest skips a test of half a minute or more, unless all long tests run or the third to which
// it belongs. The thirds take about the same time.
func LongTest(t testing.TB, third int) {
	t.Helper()
	if runs := Third(t); runs != 0 && runs != third {
		t.Skipf("a long test of third %d, and %s=%d", third, thirdVariable, runs)
	}
}
