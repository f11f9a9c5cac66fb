//go:build race

package rpcserver_test

// raceDetector says that this binary has the race detector, whose pools keep little: what a call
// allocates says nothing then.
const raceDetector = true
