// Command slicesvc writes EndpointSlices.
package main

import (
	"os"
	"runtime/debug"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// gcPercent lets the heap grow by 50 % between two collections; Go's default is 100 %. Most of
// slicesvc's memory is long-lived, so the default would reserve memory that is seldom used.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	cfg := slicesvc.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], slicesvc.Program(&cfg)))
}
