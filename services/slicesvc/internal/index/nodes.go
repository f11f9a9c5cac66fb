package index

import (
	"maps"
	"slices"
)

// PutNode takes in a node with its zone, empty for none. The effect names the
// Services with a pod on the node, if the node is new or its zone changed.
func (x *Index) PutNode(name, zone string) Effect {
	entry := x.nodes[name]
	if entry == nil {
		entry = &node{pods: map[Key]*pod{}}
		x.nodes[name] = entry
	}
	if entry.known && entry.zone == zone {
		return Effect{}
	}
	entry.known, entry.zone = true, zone
	return Effect{Services: entry.services()}
}

// DeleteNode forgets a node. No Service is named: a node object that goes away
// takes no endpoint with it until the Service is planned for another reason, as
// upstream does, so that deleting all nodes by mistake does not take every
// endpoint of the cluster away within a second.
func (x *Index) DeleteNode(name string) {
	entry := x.nodes[name]
	if entry == nil || !entry.known {
		return
	}
	entry.known, entry.zone = false, ""
	x.pruneNode(name)
}

func (x *Index) pruneNode(name string) {
	if entry := x.nodes[name]; entry != nil && !entry.known && len(entry.pods) == 0 {
		delete(x.nodes, name)
	}
}

// services gives the Services with a pod on the node, sorted.
func (n *node) services() []Key {
	found := map[Key]struct{}{}
	for key, member := range n.pods {
		for name := range member.services {
			found[Key{Namespace: key.Namespace, Name: name}] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(found), CompareKeys)
}
