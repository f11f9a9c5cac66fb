// Command gateway serves the API of all Trivet services of a cluster: gRPC, HTTP/JSON and a web
// page.
package main

import (
	"os"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
)

func main() {
	cfg := gateway.DefaultConfig()
	os.Exit(process.Main(os.Args[1:], gateway.Program(&cfg)))
}
