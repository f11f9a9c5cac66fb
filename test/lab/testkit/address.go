package testkit

import (
	"testing"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// FreeAddress returns a loopback address without a listener. No other call in this process returns
// it.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := devcluster.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
