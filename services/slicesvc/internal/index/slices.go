package index

import (
	discoveryv1 "k8s.io/api/discovery/v1"
)

// PutSlice takes in a new or changed EndpointSlice and names the Services it
// speaks of, before and after the change, as far as it is ours by its labels.
// Of slices that are not ours only the name is kept.
func (x *Index) PutSlice(object *discoveryv1.EndpointSlice) []Key {
	ns := x.namespace(object.Namespace)
	before := x.dropSlice(ns, object.Name)
	entry := &slice{object: object, owner: x.ownerOf(object)}
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

// DeleteSlice forgets a slice and names the Service that loses it.
func (x *Index) DeleteSlice(key Key) []Key {
	ns := x.namespaces[key.Namespace]
	if ns == nil {
		return nil
	}
	before := x.dropSlice(ns, key.Name)
	x.prune(key.Namespace)
	return owners(key.Namespace, before, "")
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
