//go:build !race

package rpcserver_test

const raceDetector = false
