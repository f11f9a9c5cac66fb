// Command slicesvc writes EndpointSlices.
package main

import (
	"os"
	"runtime/debug"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// gcPercent lets the heap grow by half between two collections. Go's default doubles it, but most
// objects of slicesvc are long-lived, so the other half would be used rarely.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	cfg := slicesvc.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], slicesvc.Program(&cfg)))
}
