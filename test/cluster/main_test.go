package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/trivet-dev/trivet/internal/nodecluster"
)

// TestMain is also the main function of a cluster's nodes, which are processes of this executable.
func TestMain(m *testing.M) {
	isChild, err := nodecluster.RunChild(context.Background())
	if !isChild {
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
