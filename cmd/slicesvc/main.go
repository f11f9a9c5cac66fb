// Command slicesvc keeps EndpointSlices.
package main

import (
	"os"
	"runtime/debug"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// gcPercent lets the heap grow by half between two collections, where Go's own
// default is to double: most of what slicesvc has in memory stays there, so that
// the other half would be paid for all the time and used seldom.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	cfg := slicesvc.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], slicesvc.Program(&cfg)))
}
