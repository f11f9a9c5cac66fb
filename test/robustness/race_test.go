//go:build race

package robustness

// withRace says that this binary has the race detector.
const withRace = true
