package index

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// PutSlice adds or replaces a slice as a watch shows it. It returns the Services that the managed
// slice named before and names now, and what differs from the known version; none when the known
// version is the same or newer. Of a slice of another manager only the name and version are kept.
func (x *Index) PutSlice(object *discoveryv1.EndpointSlice) ([]Key, SliceEdit) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns := x.namespace(object.Namespace)
	known := ns.slices[object.Name]
	if known != nil && known.order(object) <= 0 {
		return nil, 0
	}
	edit := x.editOf(ns, known, object)
	return x.replaceSlice(ns, object), edit
}

// PutWrittenSlice adds or replaces a slice as the answer to a write of this replica shows it. A
// newer known version stays. Of the same version this object replaces the known one, because it
// shares memory with the slice that it was made from.
func (x *Index) PutWrittenSlice(object *discoveryv1.EndpointSlice) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns := x.namespace(object.Namespace)
	if known := ns.slices[object.Name]; known != nil && known.order(object) < 0 {
		return
	}
	x.replaceSlice(ns, object)
}

// PutTombstone replaces a slice that this replica deleted in that version. Until the watch shows
// the deletion, the name counts as taken and older versions are ignored.
func (x *Index) PutTombstone(object *discoveryv1.EndpointSlice) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns := x.namespaces[object.Namespace]
	if ns == nil {
		return
	}
	known := ns.slices[object.Name]
	if known == nil || known.uid != object.UID || known.order(object) < 0 {
		return // the watch has shown its deletion, or a successor
	}
	x.unfileSlice(ns, object.Name)
	ns.slices[object.Name] = &slice{uid: object.UID, version: object.ResourceVersion}
}

// DeleteSlice removes a slice and returns the Service that loses it. last is the last version of
// the slice. A successor of the same name stays.
func (x *Index) DeleteSlice(last *discoveryv1.EndpointSlice) []Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns := x.namespaces[last.Namespace]
	if ns == nil {
		return nil
	}
	known := ns.slices[last.Name]
	if known == nil || (known.uid != last.UID && known.order(last) < 0) {
		return nil
	}
	before := x.unfileSlice(ns, last.Name)
	delete(ns.slices, last.Name)
	ns.removeSliceName(last.Name)
	x.prune(last.Namespace)
	return owners(last.Namespace, before, "")
}

// SliceVersion returns the known version of a slice of any manager; ok is false when there is none
// of that name. ours tells that the slice is managed and no tombstone.
func (x *Index) SliceVersion(key Key) (uid types.UID, version string, ours, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.slices[key.Name] == nil {
		return "", "", false, false
	}
	known := ns.slices[key.Name]
	return known.uid, known.version, known.object != nil, true
}

// Unlisted returns the slices that a list of the given version should have had and had not: slices
// whose known version is not newer and whose key is not in listed. Only name, UID and version are
// set.
func (x *Index) Unlisted(listed map[Key]struct{}, version string) []*discoveryv1.EndpointSlice {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var gone []*discoveryv1.EndpointSlice
	for within, ns := range x.namespaces {
		for name, known := range ns.slices {
			if _, ok := listed[Key{Namespace: within, Name: name}]; ok || CompareVersions(known.version, version) > 0 {
				continue
			}
			gone = append(gone, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
				Namespace:       within,
				Name:            name,
				UID:             known.uid,
				ResourceVersion: known.version,
			}})
		}
	}
	return gone
}

// slicesOf returns the managed slices that name a Service, in no particular order.
func (ns *namespace) slicesOf(service string) []*discoveryv1.EndpointSlice {
	filed := ns.byService[service]
	objects := make([]*discoveryv1.EndpointSlice, 0, len(filed))
	for _, slice := range filed {
		objects = append(objects, slice.object)
	}
	return objects
}

// order is negative for an older version of the slice, zero for the same, and positive for a newer
// version or one that cannot be compared.
func (s *slice) order(other *discoveryv1.EndpointSlice) int {
	return CompareVersions(other.ResourceVersion, s.version)
}

// CompareVersions compares the resourceVersions of two objects. If they cannot be compared, a
// counts as newer than b.
func CompareVersions(a, b string) int {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return order
}

// replaceSlice files a slice and returns the Services that it named before and names now.
func (x *Index) replaceSlice(ns *namespace, object *discoveryv1.EndpointSlice) []Key {
	before := x.unfileSlice(ns, object.Name)
	if ns.slices[object.Name] == nil {
		ns.addSliceName(object.Name)
	}
	entry := &slice{
		object:  object,
		owner:   x.ownerOf(object),
		uid:     object.UID,
		version: object.ResourceVersion,
	}
	if entry.owner == "" {
		entry.object = nil
	}
	ns.slices[object.Name] = entry
	if entry.owner != "" {
		file(ns.byService, entry.owner, object.Name, entry)
		counts := &x.shardOf(Key{Namespace: object.Namespace, Name: entry.owner}).counts
		counts.EndpointSlices++
		counts.Endpoints += len(object.Endpoints)
	}
	return owners(object.Namespace, before, entry.owner)
}

// unfileSlice takes a slice away from the Service that it is filed under and returns the Service's
// name; empty for none. The slice's entry stays.
func (x *Index) unfileSlice(ns *namespace, name string) string {
	entry := ns.slices[name]
	if entry == nil || entry.owner == "" {
		return ""
	}
	unfile(ns.byService, entry.owner, name)
	counts := &x.shardOf(Key{Namespace: entry.object.Namespace, Name: entry.owner}).counts
	counts.EndpointSlices--
	counts.Endpoints -= len(entry.object.Endpoints)
	return entry.owner
}

func (x *Index) ownerOf(object *discoveryv1.EndpointSlice) string {
	if object.Labels[discoveryv1.LabelManagedBy] != x.managedBy {
		return ""
	}
	return object.Labels[discoveryv1.LabelServiceName]
}

func owners(namespace, before, after string) []Key {
	var keys []Key
	if before != "" {
		keys = append(keys, Key{Namespace: namespace, Name: before})
	}
	if after != "" && after != before {
		keys = append(keys, Key{Namespace: namespace, Name: after})
	}
	return keys
}

// maxPrefix leaves space for a dash and ten characters within the 63 of a label value, for which
// the names of slices are used.
const maxPrefix = 52

// SliceNamePrefix returns how the names of a Service's new slices begin, without the dash that
// follows: the Service's name, shortened if it must be.
func SliceNamePrefix(service string) string {
	return strings.TrimRight(service[:min(len(service), maxPrefix)], "-.")
}

// prefixOfSlice returns the SliceNamePrefix that a slice with that name may have been made with.
func prefixOfSlice(name string) string {
	return name[:max(strings.LastIndexByte(name, '-'), 0)]
}

// addSliceName makes the name of a slice known to later snapshots.
func (ns *namespace) addSliceName(name string) {
	prefix := prefixOfSlice(name)
	names := ns.sliceNames[prefix]
	at, known := slices.BinarySearch(names, name)
	if !known {
		ns.sliceNames[prefix] = slices.Concat(names[:at], []string{name}, names[at:])
	}
}

// removeSliceName makes the name of a slice free for later snapshots.
func (ns *namespace) removeSliceName(name string) {
	prefix := prefixOfSlice(name)
	names := ns.sliceNames[prefix]
	at, known := slices.BinarySearch(names, name)
	switch {
	case !known:
	case len(names) == 1:
		delete(ns.sliceNames, prefix)
	default:
		ns.sliceNames[prefix] = slices.Concat(names[:at], names[at+1:])
	}
}
