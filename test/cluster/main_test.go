package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

// TestMain is also the main function of a cluster's nodes, which are processes of this executable.
func TestMain(m *testing.M) {
	isChild, err := nodecluster.RunChild(context.Background(), os.Args)
	if !isChild {
		code := m.Run()
		if err := finish(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "end the cluster:", err)
			code = 1
		}
		os.Exit(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
