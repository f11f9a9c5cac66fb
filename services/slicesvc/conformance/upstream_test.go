package conformance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
)

// store is a clientset with only the EndpointSlices of one namespace. It counts writes.
type store struct {
	kubernetes.Interface
	discoveryclient.DiscoveryV1Interface
	discoveryclient.EndpointSliceInterface

	slices  map[string]*discoveryv1.EndpointSlice
	writes  int
	created int
}

func newStore(slices []*discoveryv1.EndpointSlice) *store {
	s := &store{slices: map[string]*discoveryv1.EndpointSlice{}}
	for _, slice := range slices {
		s.slices[slice.Name] = slice.DeepCopy()
	}
	return s
}

func (s *store) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return s }

func (s *store) EndpointSlices(string) discoveryclient.EndpointSliceInterface { return s }

func (s *store) Create(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	kept := slice.DeepCopy()
	for kept.Name == "" || s.slices[kept.Name] != nil {
		if slice.Name != "" {
			return nil, fmt.Errorf("slice %s exists", slice.Name)
		}
		s.created++
		kept.Name = fmt.Sprintf("%s%d", slice.GenerateName, s.created)
	}
	kept.UID, kept.ResourceVersion = types.UID("uid-of-"+kept.Name), "1"
	s.slices[kept.Name] = kept
	s.writes++
	return kept.DeepCopy(), nil
}

func (s *store) Update(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	before := s.slices[slice.Name]
	if before == nil {
		return nil, fmt.Errorf("no slice %s", slice.Name)
	}
	if before.AddressType != slice.AddressType {
		return nil, fmt.Errorf("slice %s has the immutable family %s, not %s", slice.Name, before.AddressType, slice.AddressType)
	}
	kept := slice.DeepCopy()
	kept.UID, kept.ResourceVersion = before.UID, before.ResourceVersion+"1"
	s.slices[slice.Name] = kept
	s.writes++
	return kept.DeepCopy(), nil
}

func (s *store) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	if s.slices[name] == nil {
		return fmt.Errorf("no slice %s", name)
	}
	delete(s.slices, name)
	s.writes++
	return nil
}

// upstream is k8s.io/endpointslice as kube-controller-manager configures it, over the syncs of one
// Service.
type upstream struct{ topology *topologycache.TopologyCache }

func newUpstream() *upstream { return &upstream{topology: topologycache.NewTopologyCache()} }

// sync syncs the Service once.
func (u *upstream) sync(w clusterState) (*store, error) {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, node := range w.nodes {
		if err := nodes.Add(node); err != nil {
			return nil, err
		}
	}
	u.topology.SetNodes(klog.Logger{}, w.nodes)
	result := newStore(w.slices)
	reconciler := endpointslice.NewReconciler(result, corelisters.NewNodeLister(nodes), int32(w.limit), util.NewEndpointSliceTracker(),
		u.topology, &record.FakeRecorder{}, managedBy, endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	var slices []*discoveryv1.EndpointSlice
	for _, slice := range w.slices {
		slices = append(slices, slice.DeepCopy())
	}
	err := reconciler.Reconcile(klog.Logger{}, w.service, w.pods, slices, time.Time{})
	if w.waitsForNodes() {
		return result, nil // upstream returns an error for a missing Node after it has written
	}
	return result, err
}

// waitsForNodes returns whether a Pod is bound to a Node that does not exist.
func (w clusterState) waitsForNodes() bool {
	for _, pod := range w.pods {
		if w.node(pod.Spec.NodeName) == nil {
			return true
		}
	}
	return false
}

func (w clusterState) node(name string) *corev1.Node {
	for _, node := range w.nodes {
		if node.Name == name {
			return node
		}
	}
	return nil
}
