package index

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Unmanaged is why a Service gets no slices from us.
type Unmanaged string

// The reasons; Managed is none.
const (
	Managed      Unmanaged = ""
	ExternalName Unmanaged = "EXTERNAL_NAME"
	NoSelector   Unmanaged = "NO_SELECTOR"
)

// Management says whether a Service gets slices, and if not, why. A Service
// without a selector selects nothing: its slices are somebody else's business,
// and those it had from us before it lost its selector are left as they are.
func Management(service *corev1.Service) Unmanaged {
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return ExternalName
	case len(service.Spec.Selector) == 0:
		return NoSelector
	default:
		return Managed
	}
}

// PutService takes in a new or changed Service.
func (x *Index) PutService(object *corev1.Service) {
	ns := x.namespace(object.Namespace)
	entry := ns.services[object.Name]
	x.fileAuto(object)
	switch {
	case entry == nil:
		entry = &service{object: object}
		ns.services[object.Name] = entry
		x.enlist(objectKey(object))
	case selectorOf(entry.object).equal(selectorOf(object)):
		entry.object = object
		return
	default:
		x.unlink(ns, entry)
		entry.object = object
	}
	x.link(ns, entry)
}

// DeleteService forgets a Service. Its slices stay: the garbage collector deletes them in the cluster.
func (x *Index) DeleteService(key Key) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.services[key.Name] == nil {
		return
	}
	x.unlink(ns, ns.services[key.Name])
	delete(ns.services, key.Name)
	delete(x.auto, key)
	x.strike(key)
	x.prune(key.Namespace)
}

// fileAuto notes whether the Service's hints depend on all nodes.
func (x *Index) fileAuto(object *corev1.Service) {
	if Management(object) == Managed && hints.ModeOf(object) == hints.Auto {
		x.auto[objectKey(object)] = struct{}{}
		return
	}
	delete(x.auto, objectKey(object))
}

// enlist files a Service under its shard, strike takes it out.
func (x *Index) enlist(key Key) {
	own := x.share(key)
	own.services[key] = struct{}{}
	own.counts.Services++
}

func (x *Index) strike(key Key) {
	own := x.share(key)
	delete(own.services, key)
	own.counts.Services--
}

// link files a Service under its anchor and finds its pods.
func (x *Index) link(ns *namespace, entry *service) {
	entry.pods = map[*pod]struct{}{}
	selector := selectorOf(entry.object)
	if len(selector) == 0 {
		return
	}
	x.share(objectKey(entry.object)).counts.Managed++
	pairs := selector.pairs()
	entry.anchor = ns.lightestAnchor(pairs)
	file(ns.anchors, entry.anchor, entry.object.Name, entry)
	for member := range ns.byPair[ns.rarest(pairs)] {
		if selector.matches(member.labels) {
			entry.pods[member] = struct{}{}
			member.services = append(member.services, entry)
		}
	}
}

// unlink undoes link.
func (x *Index) unlink(ns *namespace, entry *service) {
	if len(selectorOf(entry.object)) == 0 {
		return
	}
	x.share(objectKey(entry.object)).counts.Managed--
	unfile(ns.anchors, entry.anchor, entry.object.Name)
	for member := range entry.pods {
		member.services = slices.DeleteFunc(member.services, func(s *service) bool { return s == entry })
	}
}

// lightestAnchor picks the pair that fewest Services are filed under, so that a
// label all pods of a namespace share does not lead each of them to all Services.
func (ns *namespace) lightestAnchor(pairs []pair) pair {
	best := pairs[0]
	for _, candidate := range pairs[1:] {
		if len(ns.anchors[candidate]) < len(ns.anchors[best]) {
			best = candidate
		}
	}
	return best
}

// rarest picks the pair that fewest pods carry.
func (ns *namespace) rarest(pairs []pair) pair {
	best := pairs[0]
	for _, candidate := range pairs[1:] {
		if len(ns.byPair[candidate]) < len(ns.byPair[best]) {
			best = candidate
		}
	}
	return best
}

// selector is a Service's selector: labels a pod must have, all of them.
type selector map[string]string

// selectorOf gives the selector of a managed Service, nil for any other.
func selectorOf(object *corev1.Service) selector {
	if Management(object) != Managed {
		return nil
	}
	return object.Spec.Selector
}

func (s selector) equal(other selector) bool { return maps.Equal(s, other) }

func (s selector) matches(labels map[string]string) bool {
	for key, value := range s {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// pairs gives the selector's pairs in order of their keys.
func (s selector) pairs() []pair {
	pairs := make([]pair, 0, len(s))
	for _, key := range slices.Sorted(maps.Keys(s)) {
		pairs = append(pairs, pair{key: key, value: s[key]})
	}
	return pairs
}
