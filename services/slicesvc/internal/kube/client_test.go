package kube_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestSlicesvc_DoesWithoutTheClientset holds what the process is built from to
// the promise in doc.go: one import of a typed client brings all of them.
func TestSlicesvc_DoesWithoutTheClientset(t *testing.T) {
	output, err := exec.Command("go", "list", "-deps", "github.com/trivet-dev/trivet/cmd/slicesvc").Output()
	if err != nil {
		t.Fatalf("list what slicesvc is built from: %v", err)
	}
	packages := strings.Fields(string(output))
	if len(packages) < 100 {
		t.Fatalf("slicesvc is built from %d packages: the list is not whole", len(packages))
	}
	for _, name := range packages {
		if strings.HasPrefix(name, "k8s.io/client-go/kubernetes") {
			t.Errorf("slicesvc is built from %s", name)
		}
	}
}
