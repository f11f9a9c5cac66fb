package kube_test

import (
	"os/exec"
	"strings"
	"testing"
)

// See doc.go. One import of a typed client links all of them.
func TestSlicesvc_DoesNotImportTheClientset(t *testing.T) {
	t.Parallel()
	output, err := exec.Command("go", "list", "-deps", "github.com/trivet-dev/trivet/services/slicesvc").Output()
	if err != nil {
		t.Fatalf("list the dependencies of slicesvc: %v", err)
	}
	packages := strings.Fields(string(output))
	if len(packages) < 100 {
		t.Fatalf("slicesvc has %d dependencies: the list is incomplete", len(packages))
	}
	for _, name := range packages {
		if strings.HasPrefix(name, "k8s.io/client-go/kubernetes") {
			t.Errorf("slicesvc depends on %s", name)
		}
	}
}
