package index

import (
	"cmp"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Snapshot is one Service and everything that a plan for it is made from, at one moment. It never
// changes and needs no lock. Its objects are shared with the Index and must not be changed.
type Snapshot struct {
	Service *corev1.Service
	// Slices are the managed slices that name the Service, in no particular order. They are nil in
	// a snapshot of some Pods.
	Slices []*discoveryv1.EndpointSlice
	// Pods are the Pods that the selector matches, in no particular order; none for a Service that
	// is not managed.
	Pods []SelectedPod
	// Shares are the zones' parts of the cluster's CPU.
	Shares hints.Shares
	// SliceNames are the sorted names of all EndpointSlices of the namespace with the Service's
	// SliceNamePrefix, including slices of other managers and tombstones.
	SliceNames []string
}

// SelectedPod is a Pod that the Service selects, with what is known of its Node.
type SelectedPod struct {
	*Pod
	// NodeKnown tells that the Pod's Node exists. Zone is the Node's zone, empty when not known.
	NodeKnown bool
	Zone      string
	// Affinity is desired.AffinityOf the Pod.
	Affinity uint32
}

// Snapshot returns the snapshot of a Service with all its Pods and slices; false when there is no
// such Service.
func (x *Index) Snapshot(key Key) (Snapshot, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns, found := x.find(key)
	if found == nil {
		return Snapshot{}, false
	}
	snapshot := x.newSnapshot(ns, found)
	snapshot.Slices = ns.slicesOf(key.Name)
	snapshot.Pods = make([]SelectedPod, 0, len(found.pods))
	for selected := range found.pods {
		snapshot.Pods = append(snapshot.Pods, x.selected(selected))
	}
	return snapshot, true
}

// SnapshotOfPods returns the snapshot of a Service with only the named Pods, as far as the Service
// selects them, and without its slices; false when there is no such Service. It costs what is
// named.
func (x *Index) SnapshotOfPods(key Key, pods map[string]struct{}) (Snapshot, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns, found := x.find(key)
	if found == nil {
		return Snapshot{}, false
	}
	snapshot := x.newSnapshot(ns, found)
	snapshot.Pods = make([]SelectedPod, 0, len(pods))
	for name := range pods {
		if pod := ns.pods[name]; pod != nil && slices.Contains(pod.services, found) {
			snapshot.Pods = append(snapshot.Pods, x.selected(pod))
		}
	}
	return snapshot, true
}

// Candidate returns a Pod with what is known of its Node, whether a Service selects it or not;
// false when there is none of that name.
func (x *Index) Candidate(key Key) (desired.Candidate, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.pods[key.Name] == nil {
		return desired.Candidate{}, false
	}
	pod := x.selected(ns.pods[key.Name])
	return desired.Candidate{Pod: pod.object(), NodeKnown: pod.NodeKnown, Zone: pod.Zone}, true
}

// CandidateAt returns the Pod of the Service's namespace that has a canonical address; false when
// there is none. Of several, it is one that the Service selects, then one that has not ended, then
// the first by name. It looks at every Pod of the namespace.
func (x *Index) CandidateAt(of Key, address string) (desired.Candidate, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns, found := x.find(of)
	if found == nil {
		return desired.Candidate{}, false
	}
	rank := func(pod *podEntry) int {
		switch _, selected := found.pods[pod]; {
		case selected && !pod.finished():
			return 0
		case selected:
			return 1
		case !pod.finished():
			return 2
		default:
			return 3
		}
	}
	var best *podEntry
	for _, pod := range ns.pods {
		if !pod.hasAddress(address) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(rank(pod), rank(best)), cmp.Compare(pod.name, best.name)) < 0 {
			best = pod
		}
	}
	if best == nil {
		return desired.Candidate{}, false
	}
	pod := x.selected(best)
	return desired.Candidate{Pod: pod.object(), NodeKnown: pod.NodeKnown, Zone: pod.Zone}, true
}

func (x *Index) newSnapshot(ns *namespace, of *service) Snapshot {
	return Snapshot{
		Service:    of.object,
		Shares:     x.shares,
		SliceNames: ns.sliceNames[SliceNamePrefix(of.object.Name)],
	}
}

func (x *Index) selected(pod *podEntry) SelectedPod {
	selected := SelectedPod{Pod: pod.Pod, Affinity: pod.affinity}
	if bound := x.nodes[pod.node]; bound != nil && bound.known {
		selected.NodeKnown, selected.Zone = true, bound.object.Zone
	}
	return selected
}

// Candidates returns the Pods in the API's type, in no particular order. Each candidate is valid
// only until the next one: one Pod is filled again and again, because all at once would take more
// memory than the Index needs for them.
func (s Snapshot) Candidates() iter.Seq[desired.Candidate] {
	return func(yield func(desired.Candidate) bool) {
		object := &corev1.Pod{}
		for _, pod := range s.Pods {
			pod.fill(object)
			if !yield(desired.Candidate{Pod: object, NodeKnown: pod.NodeKnown, Zone: pod.Zone}) {
				return
			}
		}
	}
}

// Affinities returns the affinity of each Pod by name, without those that are 0.
func (s Snapshot) Affinities() map[string]uint32 {
	affinities := make(map[string]uint32, len(s.Pods))
	for _, pod := range s.Pods {
		if pod.Affinity != 0 {
			affinities[pod.name] = pod.Affinity
		}
	}
	return affinities
}

// NameTaken reports whether an EndpointSlice of that name exists, for a name that begins with the
// Service's SliceNamePrefix.
func (s Snapshot) NameTaken(name string) bool {
	_, taken := slices.BinarySearch(s.SliceNames, name)
	return taken
}
