// Command slicesvc keeps EndpointSlices.
package main

import (
	"os"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

func main() {
	cfg := slicesvc.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], slicesvc.Program(&cfg)))
}
