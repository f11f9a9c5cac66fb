// Command bootstrapsvc maintains system namespaces, the kubernetes Service and its endpoints.
package main

import (
	"os"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
)

func main() {
	cfg := bootstrapsvc.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], bootstrapsvc.Program(&cfg)))
}
