package index

import (
	"maps"
	"slices"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// PutNode adds or replaces a Node. If the Node is new or its zone changed, the effect names the
// Services with a Pod on it. If the zones' shares changed, it names the Services in mode Auto.
func (x *Index) PutNode(name string, object hints.Node) Effect {
	x.mu.Lock()
	defer x.mu.Unlock()
	entry := x.nodes[name]
	if entry == nil {
		entry = &node{pods: map[*podEntry]struct{}{}}
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
		effect.Urgency = Urgent // endpoints may have waited for the Node
	}
	effect.Hinted = x.updateShares()
	return effect
}

// DeleteNode removes a Node. The effect names the Services with a Pod on it, and is deferred, as
// with upstream: the endpoints stay until the Service is synced for another reason. So the deletion
// of all Nodes by mistake does not remove every endpoint of the cluster within a second. The effect
// also names the Services in mode Auto if the zones' shares changed; they are synced for that.
func (x *Index) DeleteNode(name string) Effect {
	x.mu.Lock()
	defer x.mu.Unlock()
	entry := x.nodes[name]
	if entry == nil || !entry.known {
		return Effect{}
	}
	x.topology.Remove(entry.object)
	entry.known, entry.object = false, hints.Node{}
	effect := entry.effect()
	effect.Deferred = true
	effect.Hinted = x.updateShares()
	x.pruneNode(name)
	return effect
}

// updateShares returns the Services in mode Auto, sorted, if the zones' shares changed.
func (x *Index) updateShares() []Key {
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

// effect names the Pods on the Node that a Service selects, and these Services, sorted.
func (n *node) effect() Effect {
	services := map[Key]struct{}{}
	var pods []Key
	for pod := range n.pods {
		for _, selecting := range pod.services {
			services[objectKey(selecting.object)] = struct{}{}
		}
		if len(pod.services) > 0 {
			pods = append(pods, pod.key())
		}
	}
	if len(services) == 0 {
		return Effect{}
	}
	slices.SortFunc(pods, CompareKeys)
	return Effect{
		Services: slices.SortedFunc(maps.Keys(services), CompareKeys),
		Pods:     pods,
	}
}
