package api

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// converter converts API messages to the types of the session controller and back.
type converter struct{ catalog *class.Catalog }

// holder returns false if the class is not served.
func (c converter) holder(h *leasev1.Holder) (session.Holder, bool) {
	id, served := c.catalog.ByName(h.GetClass())
	return session.Holder{Key: session.Key{Class: id, Name: h.GetName()}, Boot: h.GetBootId()}, served
}

// registration returns false if the class is not served.
func (c converter) registration(h *leasev1.Holder, sequence uint64) (sessioncontroller.Registration, bool) {
	holder, served := c.holder(h)
	return sessioncontroller.Registration{
		Holder: holder, Shard: c.catalog.Shard(h.GetClass(), h.GetName()), Sequence: sequence,
	}, served
}

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

func grantOf(g sessioncontroller.Grant) *leasev1.Grant {
	return &leasev1.Grant{Epoch: g.Epoch, NextInterval: durationpb.New(g.Interval), Ttl: durationpb.New(g.TTL)}
}
