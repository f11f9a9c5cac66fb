package index

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Key names a Service, a Pod or an EndpointSlice.
type Key = types.NamespacedName

// Index holds the joined objects of a cluster. It is safe for concurrent use.
type Index struct {
	managedBy string

	mu         sync.RWMutex // guards all below
	namespaces map[string]*namespace
	nodes      map[string]*node
	shards     []shardState
	// topology sums up all Nodes. shares is what Services with hints in mode Auto were last told of
	// it.
	topology hints.Topology
	shares   hints.Shares
	// auto holds the Services with hints in mode Auto.
	auto map[Key]struct{}
}

// shardState is the part of an Index that belongs to one shard.
type shardState struct {
	services map[Key]struct{}
	counts   Counts
}

// Counts are the sizes of some shards. Each object counts in one shard, so that the counts of all
// shards add up to those of the cluster.
type Counts struct {
	// Services counts all Services; Managed counts the Services that get slices.
	Services, Managed int
	// Pods counts each Pod in the shard of its own name, because the Services that select it may be
	// in several shards.
	Pods int
	// EndpointSlices counts the slices with the index's managed-by value, and Endpoints their
	// endpoints, in the shard of the Service that the slices name.
	EndpointSlices, Endpoints int
}

func (c *Counts) add(other Counts) {
	c.Services += other.Services
	c.Managed += other.Managed
	c.Pods += other.Pods
	c.EndpointSlices += other.EndpointSlices
	c.Endpoints += other.Endpoints
}

// namespace holds the objects of one namespace; no selector reaches beyond it.
type namespace struct {
	services map[string]*service
	pods     map[string]*podEntry
	slices   map[string]*slice

	// anchors files each managed Service under one pair of its selector.
	anchors map[pair]map[string]*service
	// byPair files each Pod under every pair of its labels.
	byPair map[pair]map[*podEntry]struct{}
	// byService files the managed slices by the Service that they name, which may not exist.
	byService map[string]map[string]*slice
	// sliceNames has the names of all slices by their SliceNamePrefix. Each list is sorted and is
	// replaced instead of changed, because snapshots share it.
	sliceNames map[string][]string
}

// pair is one label with its value.
type pair struct{ key, value string }

type service struct {
	object *corev1.Service
	anchor pair
	pods   map[*podEntry]struct{}
}

// podEntry is the current version of a Pod and what is joined with it.
type podEntry struct {
	*Pod
	// affinity is desired.AffinityOf the Pod.
	affinity uint32
	// services select the Pod, in no particular order. Nearly every Pod has one.
	services []*service
}

type node struct {
	known  bool
	object hints.Node
	pods   map[*podEntry]struct{}
}

// slice is the last known version of one EndpointSlice of any manager.
type slice struct {
	// object is nil for a slice of another manager, and for a tombstone.
	object *discoveryv1.EndpointSlice
	// owner is the Service that the slice names; empty when object is nil.
	owner   string
	uid     types.UID
	version string
}

// New returns an empty Index that divides Services into the given number of shards, which must be
// positive. A slice is managed by this Index when its managed-by label has the value managedBy.
func New(managedBy string, shards int) *Index {
	x := &Index{
		managedBy:  managedBy,
		namespaces: map[string]*namespace{},
		nodes:      map[string]*node{},
		shards:     make([]shardState, shards),
		auto:       map[Key]struct{}{},
	}
	for i := range x.shards {
		x.shards[i].services = map[Key]struct{}{}
	}
	return x
}

// Counts returns the sizes of some shards.
func (x *Index) Counts(shards []int) Counts {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var sum Counts
	for _, number := range shards {
		sum.add(x.shards[number].counts)
	}
	return sum
}

// shardOf returns the state of the shard that an object's key belongs to.
func (x *Index) shardOf(key Key) *shardState {
	return &x.shards[shard.Of(key.Namespace, key.Name, len(x.shards))]
}

// KeysAfter returns the first limit Services behind after, in order of namespace and name, of one
// namespace or of all namespaces for "". The zero Key is before all. The cost is one look at each
// Service of the namespaces that the page reaches, and sorting at most twice the limit at a time.
func (x *Index) KeysAfter(within string, after Key, limit int) []Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var page []Key
	for _, name := range x.namespacesFrom(within, after.Namespace) {
		page = append(page, x.namespaces[name].servicesAfter(name, after, limit-len(page))...)
		if len(page) == limit {
			break
		}
	}
	return page
}

// namespacesFrom returns the sorted names of the namespaces from first on, or only within if that
// is not empty.
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

// servicesAfter keeps the least keys seen so far instead of sorting all of them.
func (ns *namespace) servicesAfter(name string, after Key, limit int) []Key {
	var least []Key
	for service := range ns.services {
		key := Key{Namespace: name, Name: service}
		if CompareKeys(key, after) <= 0 {
			continue
		}
		if least = append(least, key); len(least) == 2*limit {
			least = firstKeys(least, limit)
		}
	}
	return firstKeys(least, limit)
}

func firstKeys(keys []Key, limit int) []Key {
	slices.SortFunc(keys, CompareKeys)
	return keys[:min(len(keys), limit)]
}

// ShardKeys returns the Services of one shard, in order of namespace and name.
func (x *Index) ShardKeys(number int) []Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(x.shards[number].services), CompareKeys)
}

// CompareKeys orders keys by namespace, then by name.
func CompareKeys(a, b Key) int {
	if order := strings.Compare(a.Namespace, b.Namespace); order != 0 {
		return order
	}
	return strings.Compare(a.Name, b.Name)
}

// find returns a Service and its namespace; nil when there is none of that name.
func (x *Index) find(key Key) (*namespace, *service) {
	ns := x.namespaces[key.Namespace]
	if ns == nil {
		return nil, nil
	}
	return ns, ns.services[key.Name]
}

func objectKey(object metav1.Object) Key {
	return Key{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func (x *Index) namespace(name string) *namespace {
	ns := x.namespaces[name]
	if ns == nil {
		ns = &namespace{
			services:   map[string]*service{},
			pods:       map[string]*podEntry{},
			slices:     map[string]*slice{},
			anchors:    map[pair]map[string]*service{},
			byPair:     map[pair]map[*podEntry]struct{}{},
			byService:  map[string]map[string]*slice{},
			sliceNames: map[string][]string{},
		}
		x.namespaces[name] = ns
	}
	return ns
}

// prune removes a namespace that has become empty, so that the Index does not grow in a cluster
// that creates and deletes namespaces.
func (x *Index) prune(name string) {
	ns := x.namespaces[name]
	if ns != nil && len(ns.services)+len(ns.pods)+len(ns.slices) == 0 {
		delete(x.namespaces, name)
	}
}

// file adds an entry to a nested map.
func file[K, N comparable, V any](in map[K]map[N]V, under K, name N, value V) {
	if in[under] == nil {
		in[under] = map[N]V{}
	}
	in[under][name] = value
}

// unfile removes an entry from a nested map, and the inner map when it has become empty.
func unfile[K, N comparable, V any](from map[K]map[N]V, under K, name N) {
	delete(from[under], name)
	if len(from[under]) == 0 {
		delete(from, under)
	}
}
