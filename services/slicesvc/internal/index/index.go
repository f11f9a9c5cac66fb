package index

import (
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Key names a Service, a pod or a slice.
type Key = types.NamespacedName

// Index is the joined state of a cluster as far as slices need it.
type Index struct {
	managedBy  string
	namespaces map[string]*namespace
	nodes      map[string]*node
	shards     []share
	// topology is the sum of all nodes, shares what Services with hints for the
	// whole cluster are told of it, and auto those Services.
	topology hints.Topology
	shares   hints.Shares
	auto     map[Key]struct{}
}

// share is what belongs to one shard.
type share struct {
	services map[Key]struct{}
	counts   Counts
}

// Counts are the sizes of some shards of an Index. Whatever is counted belongs
// to one shard, so that the counts of all shards add up to those of the cluster.
type Counts struct {
	// Services counts all Services; Managed those which get slices.
	Services, Managed int
	// Pods counts each pod in the shard that its own name falls into, since the
	// Services that select it may be in several.
	Pods int
	// EndpointSlices counts the slices with the index's managed-by value, Endpoints
	// what they hold, both in the shard of the Service the slices name.
	EndpointSlices, Endpoints int
}

func (c *Counts) add(other Counts) {
	c.Services += other.Services
	c.Managed += other.Managed
	c.Pods += other.Pods
	c.EndpointSlices += other.EndpointSlices
	c.Endpoints += other.Endpoints
}

// namespace is one namespace's share; no selector reaches beyond it.
type namespace struct {
	services map[string]*service
	pods     map[string]*pod
	slices   map[string]*slice

	// anchors files each managed Service under one pair of its selector.
	anchors map[pair]map[string]*service
	// byPair files each pod under every pair of its labels.
	byPair map[pair]map[*pod]struct{}
	// byService files our slices by the Service they name, which may not exist.
	byService map[string]map[string]*slice
}

// pair is one label with its value.
type pair struct{ key, value string }

type service struct {
	object *corev1.Service
	anchor pair
	pods   map[*pod]struct{}
}

type pod struct {
	*kept
	// affinity is desired.AffinityOf the object.
	affinity uint32
	// services are those that select it, in no particular order: one, for nearly all pods.
	services []*service
}

type node struct {
	known  bool
	object hints.Node
	pods   map[*pod]struct{}
}

// New returns an empty Index that files Services under so many shards, at least
// one. Slices are ours when their managed-by label is managedBy.
func New(managedBy string, shards int) *Index {
	x := &Index{
		managedBy:  managedBy,
		namespaces: map[string]*namespace{},
		nodes:      map[string]*node{},
		shards:     make([]share, shards),
		auto:       map[Key]struct{}{},
	}
	for i := range x.shards {
		x.shards[i].services = map[Key]struct{}{}
	}
	return x
}

// Counts returns the sizes of some shards.
func (x *Index) Counts(shards []int) Counts {
	var sum Counts
	for _, number := range shards {
		sum.add(x.shards[number].counts)
	}
	return sum
}

// share returns what the object of that key is part of.
func (x *Index) share(key Key) *share {
	return &x.shards[shard.Of(key.Namespace, key.Name, len(x.shards))]
}

// Keys returns the Services of one namespace, or of all for "", in order of
// namespace and name.
func (x *Index) Keys(within string) []Key {
	var keys []Key
	for name, ns := range x.namespaces {
		if within != "" && within != name {
			continue
		}
		for service := range ns.services {
			keys = append(keys, Key{Namespace: name, Name: service})
		}
	}
	slices.SortFunc(keys, CompareKeys)
	return keys
}

// ShardKeys returns the Services of one shard, in order of namespace and name.
func (x *Index) ShardKeys(number int) []Key {
	return slices.SortedFunc(maps.Keys(x.shards[number].services), CompareKeys)
}

func objectKey(object metav1.Object) Key {
	return Key{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// CompareKeys orders by namespace, then by name.
func CompareKeys(a, b Key) int {
	if order := strings.Compare(a.Namespace, b.Namespace); order != 0 {
		return order
	}
	return strings.Compare(a.Name, b.Name)
}

// Observed is what is known about one Service.
type Observed struct {
	Service *corev1.Service
	// Slices are the slices that name the Service and are ours by their labels, in no particular order.
	Slices []*discoveryv1.EndpointSlice
	// Shares are the zones' parts of the cluster, for hints that depend on all nodes.
	Shares hints.Shares
	// members are the pods the selector matches; none when the Service is not managed.
	members []member
}

// member is a pod with what was known of its node.
type member struct {
	*kept
	nodeKnown bool
	zone      string
}

// Candidates are the pods the selector matches, in no particular order; none when
// the Service is not managed. Each is good until the next one is asked for: to make
// the API's type of all of them at once would take more memory than to keep them.
func (o Observed) Candidates() iter.Seq[desired.Candidate] {
	return func(yield func(desired.Candidate) bool) {
		pod := &corev1.Pod{}
		for _, one := range o.members {
			one.fill(pod)
			if !yield(desired.Candidate{Pod: pod, NodeKnown: one.nodeKnown, Zone: one.zone}) {
				return
			}
		}
	}
}

// Observed gathers what is known about a Service; false when there is no such
// Service. The objects are shared and must not be changed.
func (x *Index) Observed(key Key) (Observed, bool) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.services[key.Name] == nil {
		return Observed{}, false
	}
	found := ns.services[key.Name]
	observed := Observed{
		Service: found.object,
		Slices:  ns.ownSlices(key.Name),
		Shares:  x.shares,
		members: make([]member, 0, len(found.pods)),
	}
	for selected := range found.pods {
		observed.members = append(observed.members, x.member(selected))
	}
	return observed, true
}

// Candidate returns a pod that the Service's selector matches; false when there
// is none of that name.
func (x *Index) Candidate(key Key, pod string) (desired.Candidate, bool) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.services[key.Name] == nil {
		return desired.Candidate{}, false
	}
	selected := ns.pods[pod]
	if selected == nil || !slices.Contains(selected.services, ns.services[key.Name]) {
		return desired.Candidate{}, false
	}
	found := x.member(selected)
	return desired.Candidate{Pod: found.object(), NodeKnown: found.nodeKnown, Zone: found.zone}, true
}

// Affinity is desired.AffinityOf a pod; 0 when there is none of that name.
func (x *Index) Affinity(key Key) uint32 {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.pods[key.Name] == nil {
		return 0
	}
	return ns.pods[key.Name].affinity
}

// Service returns a Service; false when there is none of that name.
func (x *Index) Service(key Key) (*corev1.Service, bool) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.services[key.Name] == nil {
		return nil, false
	}
	return ns.services[key.Name].object, true
}

// Slices returns a Service with its slices, without the cost of its pods.
func (x *Index) Slices(key Key) (*corev1.Service, []*discoveryv1.EndpointSlice, bool) {
	found, ok := x.Service(key)
	if !ok {
		return nil, nil, false
	}
	return found, x.namespaces[key.Namespace].ownSlices(key.Name), true
}

func (ns *namespace) ownSlices(service string) []*discoveryv1.EndpointSlice {
	filed := ns.byService[service]
	own := make([]*discoveryv1.EndpointSlice, 0, len(filed))
	for _, slice := range filed {
		own = append(own, slice.object)
	}
	return own
}

// HasSlice reports whether an EndpointSlice of that name exists, whoever manages it.
func (x *Index) HasSlice(key Key) bool {
	ns := x.namespaces[key.Namespace]
	return ns != nil && ns.slices[key.Name] != nil
}

func (x *Index) member(of *pod) member {
	found := member{kept: of.kept}
	if bound := x.nodes[of.node]; bound != nil && bound.known {
		found.nodeKnown, found.zone = true, bound.object.Zone
	}
	return found
}

func (x *Index) namespace(name string) *namespace {
	ns := x.namespaces[name]
	if ns == nil {
		ns = &namespace{
			services:  map[string]*service{},
			pods:      map[string]*pod{},
			slices:    map[string]*slice{},
			anchors:   map[pair]map[string]*service{},
			byPair:    map[pair]map[*pod]struct{}{},
			byService: map[string]map[string]*slice{},
		}
		x.namespaces[name] = ns
	}
	return ns
}

// prune forgets a namespace that has become empty, so that clusters which make
// and drop namespaces do not grow the index.
func (x *Index) prune(name string) {
	ns := x.namespaces[name]
	if ns != nil && len(ns.services)+len(ns.pods)+len(ns.slices) == 0 {
		delete(x.namespaces, name)
	}
}

// file adds an entry to a nested map and unfile takes it out again, both
// keeping no empty inner map.
func file[K, N comparable, V any](in map[K]map[N]V, under K, name N, value V) {
	if in[under] == nil {
		in[under] = map[N]V{}
	}
	in[under][name] = value
}

func unfile[K, N comparable, V any](from map[K]map[N]V, under K, name N) {
	delete(from[under], name)
	if len(from[under]) == 0 {
		delete(from, under)
	}
}
