// Command trivet-agent sends the heartbeats of a node to leasesvc.
package main

import (
	"os"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/nodeagent"
)

func main() { os.Exit(nodeagent.Main(os.Args[1:])) }
