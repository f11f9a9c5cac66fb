package testkit

import (
	"os"
	"strconv"
	"testing"
)

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
