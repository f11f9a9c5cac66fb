//go:build !linux

package term_test

// childVariable is never set: freezing a process that must die with its parent is tested on Linux.
const childVariable = "TRIVET_TERM_TEST_CHILD"

func runChild() int { return 1 }
