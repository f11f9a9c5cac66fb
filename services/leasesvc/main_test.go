package leasesvc_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// TestMain runs four tests at a time: beats are late if two processors have more to do.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	testkit.Main(m)
}
