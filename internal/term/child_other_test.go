//go:build !linux

package term_test

// childVariable is never set, because the test with a child process needs Linux.
const childVariable = "TRIVET_TERM_TEST_CHILD"

func runChild() int { return 1 }
