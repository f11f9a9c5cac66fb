package class_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func TestCatalog_MapsNamesNamespacesAndIDs(t *testing.T) {
	node, sidecar := class.DefaultNode(), class.DefaultNode()
	sidecar.Name, sidecar.Namespace, sidecar.Grace = "sidecar", "sidecars", time.Second
	c := class.NewCatalog([]class.Class{node, sidecar}, 64)
	if id, served := c.ByName("sidecar"); !served || id != 1 || c.Get(id).Namespace != "sidecars" {
		t.Errorf("ByName = %d, %t", id, served)
	}
	if id, served := c.ByNamespace("kube-node-lease"); !served || id != 0 {
		t.Errorf("ByNamespace = %d, %t", id, served)
	}
	for _, lookup := range []func(string) (session.ClassID, bool){c.ByName, c.ByNamespace} {
		if id, served := lookup("unknown"); served {
			t.Errorf("an unknown name has the ID %d", id)
		}
	}
	for namespace, want := range map[string][]bool{"sidecars": {false, true}, "unknown": {false, false}} {
		if got := c.Mark(namespace); !slices.Equal(want, got) {
			t.Errorf("Mark(%q) = %v, want %v", namespace, got, want)
		}
	}
	if got := c.ShortestGrace(); got != time.Second {
		t.Errorf("shortest grace period %v, want that of the sidecar", got)
	}
}

// Replicas may list the classes in another order.
func TestCatalog_ShardDoesNotDependOnTheOrderOfClasses(t *testing.T) {
	node, sidecar := class.DefaultNode(), class.DefaultNode()
	sidecar.Name, sidecar.Namespace = "sidecar", "sidecars"
	a, b := class.NewCatalog([]class.Class{node, sidecar}, 64), class.NewCatalog([]class.Class{sidecar, node}, 64)
	for _, name := range []string{"n1", "n2", "n3"} {
		if a.ShardOf(session.Key{Class: 0, Name: name}) != b.ShardOf(session.Key{Class: 1, Name: name}) {
			t.Errorf("the shard of %s depends on the order of classes", name)
		}
	}
}
