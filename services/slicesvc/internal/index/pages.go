package index

import (
	"cmp"
	"maps"
	"slices"
)

// KeysAfter returns the first limit Services behind after, in order of namespace
// and name, of one namespace or of all for "". The zero Key is before all. What it
// costs is the Services of the namespaces that the page reaches into, and no
// ordering of more than twice the limit at a time.
func (x *Index) KeysAfter(within string, after Key, limit int) []Key {
	var page []Key
	for _, name := range x.namespacesFrom(within, after.Namespace) {
		page = append(page, x.namespaces[name].servicesAfter(name, after, limit-len(page))...)
		if len(page) == limit {
			break
		}
	}
	return page
}

// namespacesFrom names the namespaces from one on, or the one that is asked for.
func (x *Index) namespacesFrom(within, first string) []string {
	if within != "" {
		if _, known := x.namespaces[within]; !known || cmp.Less(within, first) {
			return nil
		}
		return []string{within}
	}
	names := slices.Collect(maps.Keys(x.namespaces))
	names = slices.DeleteFunc(names, func(name string) bool { return name < first })
	slices.Sort(names)
	return names
}

// servicesAfter selects rather than orders: it keeps the least of what it has seen.
func (ns *namespace) servicesAfter(name string, after Key, limit int) []Key {
	var least []Key
	for service := range ns.services {
		key := Key{Namespace: name, Name: service}
		if CompareKeys(key, after) <= 0 {
			continue
		}
		if least = append(least, key); len(least) == 2*limit {
			least = first(least, limit)
		}
	}
	return first(least, limit)
}

func first(keys []Key, limit int) []Key {
	slices.SortFunc(keys, CompareKeys)
	return keys[:min(len(keys), limit)]
}
