package testkit

import (
	"testing"
	"time"
)

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
