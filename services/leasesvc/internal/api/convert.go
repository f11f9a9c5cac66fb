package api

import (
	"fmt"
	"strings"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// converter converts API messages to the types of the session controller and back.
type converter struct{ catalog *class.Catalog }

// key returns the session of a resource name; false if no class has the name's namespace.
func (c converter) key(name string) (session.Key, bool) {
	namespace, lease, _ := strings.Cut(strings.TrimPrefix(name, "namespaces/"), "/leases/")
	id, served := c.catalog.ByNamespace(namespace)
	return session.Key{Class: id, Name: lease}, served
}

func (c converter) name(key session.Key) string {
	return fmt.Sprintf("namespaces/%s/leases/%s", c.catalog.Get(key.Class).Namespace, key.Name)
}

// classesIn returns the set of classes in a parent, by session.ClassID; nil for all classes.
func (c converter) classesIn(parent string) []bool {
	namespace := strings.TrimPrefix(parent, "namespaces/")
	if namespace == "" || namespace == "-" {
		return nil
	}
	return c.catalog.Mark(namespace)
}
