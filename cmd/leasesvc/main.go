// Command leasesvc receives heartbeats and writes Lease objects.
package main

import (
	"os"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func main() {
	cfg := leasesvc.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], leasesvc.Program(&cfg)))
}
