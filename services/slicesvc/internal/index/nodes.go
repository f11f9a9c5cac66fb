package index

import (
	"maps"
	"slices"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// PutNode takes in a new or changed node. The effect names the Services with a
// pod on the node, if the node is new or its zone changed, and those with hints
// for the whole cluster, if these may be told anything else now.
func (x *Index) PutNode(name string, object hints.Node) Effect {
	entry := x.nodes[name]
	if entry == nil {
		entry = &node{pods: map[*pod]struct{}{}}
		x.nodes[name] = entry
	}
	before, known := entry.object, entry.known
	if known && before == object {
		return Effect{}
	}
	if known {
		x.topology.Remove(before)
	}
	x.topology.Add(object)
	entry.known, entry.object = true, object
	var effect Effect
	if !known || before.Zone != object.Zone {
		effect = entry.effect()
		effect.Urgency = Normal
	}
	if !known {
		effect.Urgency = Urgent // endpoints may have waited for it
	}
	effect.Hinted = x.rehint()
	return effect
}

// DeleteNode forgets a node. No Service is named for its pods: a node object that
// goes away takes no endpoint with it until the Service is planned for another
// reason, as upstream does, so that deleting all nodes by mistake does not take
// every endpoint of the cluster away within a second. Services with hints for the
// whole cluster are named if these may be told anything else now; as with
// upstream, a plan for them leaves out pods whose node is gone.
func (x *Index) DeleteNode(name string) Effect {
	entry := x.nodes[name]
	if entry == nil || !entry.known {
		return Effect{}
	}
	x.topology.Remove(entry.object)
	entry.known, entry.object = false, hints.Node{}
	x.pruneNode(name)
	return Effect{Hinted: x.rehint()}
}

// Node returns what is known of a node; false when there is none of that name.
func (x *Index) Node(name string) (hints.Node, bool) {
	entry := x.nodes[name]
	if entry == nil || !entry.known {
		return hints.Node{}, false
	}
	return entry.object, true
}

// rehint brings the shares up to date and names the Services that depend on
// them, sorted; none when nothing changed for them.
func (x *Index) rehint() []Key {
	shares := x.topology.Shares()
	if shares.Equal(x.shares) {
		return nil
	}
	x.shares = shares
	return slices.SortedFunc(maps.Keys(x.auto), CompareKeys)
}

func (x *Index) pruneNode(name string) {
	if entry := x.nodes[name]; entry != nil && !entry.known && len(entry.pods) == 0 {
		delete(x.nodes, name)
	}
}

// effect names the pods on the node and the Services that select them, sorted.
func (n *node) effect() Effect {
	found := map[Key]struct{}{}
	var concerned []Key
	for member := range n.pods {
		for _, selecting := range member.services {
			found[objectKey(selecting.object)] = struct{}{}
		}
		if len(member.services) > 0 {
			concerned = append(concerned, member.key())
		}
	}
	if len(found) == 0 {
		return Effect{}
	}
	slices.SortFunc(concerned, CompareKeys)
	return Effect{
		Services: slices.SortedFunc(maps.Keys(found), CompareKeys),
		Pods:     concerned,
	}
}
