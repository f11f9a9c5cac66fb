package index

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// slice is one EndpointSlice of whomever, as it was last put in.
type slice struct {
	// object is nil when the slice is not ours or was deleted by us.
	object *discoveryv1.EndpointSlice
	// owner is the Service the slice names; empty when object is nil.
	owner   string
	uid     types.UID
	version string
}

// PutSlice takes in a slice as a watch shows it and names the Services it speaks
// of, before and after, as far as it is ours by its labels; none when it was
// known as new or newer already. Of slices that are not ours only the name is
// kept.
func (x *Index) PutSlice(object *discoveryv1.EndpointSlice) []Key {
	ns := x.namespace(object.Namespace)
	if known := ns.slices[object.Name]; known != nil && known.order(object) <= 0 {
		return nil
	}
	return x.replaceSlice(ns, object)
}

// KeepSlice takes in a slice as one of our own writes left it. A newer one that
// was put in meanwhile stays, and of two of the same version this one is kept:
// it shares its memory with the slice it was made from.
func (x *Index) KeepSlice(object *discoveryv1.EndpointSlice) {
	ns := x.namespace(object.Namespace)
	if known := ns.slices[object.Name]; known != nil && known.order(object) < 0 {
		return
	}
	x.replaceSlice(ns, object)
}

// BurySlice takes note that a slice of that version was deleted by us. Until the
// deletion is shown its name counts as taken and what was shown of it before
// counts for nothing.
func (x *Index) BurySlice(object *discoveryv1.EndpointSlice) {
	ns := x.namespaces[object.Namespace]
	if ns == nil {
		return
	}
	known := ns.slices[object.Name]
	if known == nil || known.uid != object.UID || known.order(object) < 0 {
		return // shown to be gone, or to be there, since
	}
	x.dropSlice(ns, object.Name)
	ns.slices[object.Name] = &slice{uid: object.UID, version: object.ResourceVersion}
}

// DeleteSlice forgets a slice and names the Service that loses it. last is the
// slice as it was when it went; what is there under its name and is not it stays.
func (x *Index) DeleteSlice(last *discoveryv1.EndpointSlice) []Key {
	ns := x.namespaces[last.Namespace]
	if ns == nil {
		return nil
	}
	known := ns.slices[last.Name]
	if known == nil || (known.uid != last.UID && known.order(last) < 0) {
		return nil
	}
	before := x.dropSlice(ns, last.Name)
	x.prune(last.Namespace)
	return owners(last.Namespace, before, "")
}

// SliceVersion returns what is known of a slice by name, whoever's it is; false
// when there is none. ours says that it is ours and not deleted by us.
func (x *Index) SliceVersion(key Key) (uid types.UID, version string, ours, ok bool) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.slices[key.Name] == nil {
		return "", "", false, false
	}
	known := ns.slices[key.Name]
	return known.uid, known.version, known.object != nil, true
}

// Unlisted returns, by name, UID and version alone, the slices that are known in
// that version or an older one and are not among those there were then.
func (x *Index) Unlisted(there map[Key]struct{}, version string) []*discoveryv1.EndpointSlice {
	var gone []*discoveryv1.EndpointSlice
	for within, ns := range x.namespaces {
		for name, known := range ns.slices {
			if _, ok := there[Key{Namespace: within, Name: name}]; ok || CompareVersions(known.version, version) > 0 {
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

// order tells a slice of the same name from the known one: negative for an older
// version, positive for a newer one or where that cannot be told.
func (s *slice) order(other *discoveryv1.EndpointSlice) int {
	return CompareVersions(other.ResourceVersion, s.version)
}

// CompareVersions compares the resourceVersions of two objects; what cannot be
// compared counts as newer than b.
func CompareVersions(a, b string) int {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return order
}

func (x *Index) replaceSlice(ns *namespace, object *discoveryv1.EndpointSlice) []Key {
	before := x.dropSlice(ns, object.Name)
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
		counts := &x.share(Key{Namespace: object.Namespace, Name: entry.owner}).counts
		counts.EndpointSlices++
		counts.Endpoints += len(object.Endpoints)
	}
	return owners(object.Namespace, before, entry.owner)
}

// dropSlice takes a slice out and returns the Service it was filed under.
func (x *Index) dropSlice(ns *namespace, name string) string {
	entry := ns.slices[name]
	if entry == nil {
		return ""
	}
	delete(ns.slices, name)
	if entry.owner != "" {
		unfile(ns.byService, entry.owner, name)
		counts := &x.share(Key{Namespace: entry.object.Namespace, Name: entry.owner}).counts
		counts.EndpointSlices--
		counts.Endpoints -= len(entry.object.Endpoints)
	}
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
