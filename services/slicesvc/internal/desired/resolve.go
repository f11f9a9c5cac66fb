package desired

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Endpoints is what a Service should have.
type Endpoints struct {
	// Families has every family the Service is served in, IPv4 first, also one without an endpoint.
	Families []Family
	// MissingNodes names the nodes that do not exist although a pod of the
	// Service is bound to them, sorted. Once one appears, the answer changes.
	MissingNodes []string
}

// Family is what a Service should have in one address family.
type Family struct {
	AddressType discoveryv1.AddressType
	// Groups are ordered by key; none is without an endpoint.
	Groups []Group
}

// Group is endpoints that serve the same set of ports.
type Group struct {
	Key       PortKey
	Ports     []discoveryv1.EndpointPort
	Endpoints []Endpoint
}

// Resolve gives the endpoints of a Service from the pods its selector matches.
// The order of endpoints within a group is that of the candidates.
func Resolve(service *corev1.Service, candidates []Candidate) Endpoints {
	return ResolveEach(service, slices.Values(candidates))
}

// ResolveEach is Resolve for candidates of which each is good only until the next:
// nothing of a pod is kept but texts.
func ResolveEach(service *corev1.Service, candidates iter.Seq[Candidate]) Endpoints {
	resolver := newResolver(service)
	missing := map[string]struct{}{}
	for candidate := range candidates {
		reason := exclude(service, candidate)
		if awaitsNode(candidate) && candidate.Pod.Spec.NodeName != "" && (reason == Included || reason == NodeMissing) {
			missing[candidate.Pod.Spec.NodeName] = struct{}{}
		}
		if reason == Included {
			resolver.add(candidate)
		}
	}
	return Endpoints{
		Families:     resolver.families(),
		MissingNodes: slices.Sorted(maps.Keys(missing)),
	}
}

// Judge says why the candidate has no endpoint of a family, or Included.
func Judge(service *corev1.Service, candidate Candidate, family discoveryv1.AddressType) Exclusion {
	if reason := exclude(service, candidate); reason != Included {
		return reason
	}
	if addressesOf(candidate.Pod, family) == "" {
		return NoAddressOfFamily
	}
	return Included
}

// resolver collects endpoints by family and by the numbers the Service's ports
// have on a pod; almost always every pod of a Service has the same ones.
type resolver struct {
	service      *corev1.Service
	mode         hints.Mode
	addressTypes []discoveryv1.AddressType
	byNumbers    map[string]*portGroup
	// numbers and key are scratch space.
	numbers []int32
	key     []byte
}

// portGroup is the endpoints of pods with the same ports, for each address type
// in the resolver's order.
type portGroup struct {
	key       PortKey
	ports     []discoveryv1.EndpointPort
	endpoints [][]Endpoint
}

func newResolver(service *corev1.Service) *resolver {
	return &resolver{
		service:      service,
		mode:         hints.ModeOf(service),
		addressTypes: Families(service),
		byNumbers:    map[string]*portGroup{},
	}
}

func (r *resolver) add(candidate Candidate) {
	group := r.group(candidate.Pod)
	for i, addressType := range r.addressTypes {
		addresses := addressesOf(candidate.Pod, addressType)
		if addresses == "" {
			continue
		}
		group.endpoints[i] = append(group.endpoints[i], r.endpoint(candidate, addresses))
	}
}

func (r *resolver) group(pod *corev1.Pod) *portGroup {
	r.numbers = appendPortNumbers(r.numbers[:0], r.service, pod)
	r.key = r.key[:0]
	for _, number := range r.numbers {
		r.key = append(r.key, byte(number), byte(number>>8), byte(number>>16), byte(number>>24))
	}
	if group, ok := r.byNumbers[string(r.key)]; ok {
		return group
	}
	ports := endpointPorts(r.service, r.numbers)
	group := &portGroup{
		key:       KeyOf(ports),
		ports:     ports,
		endpoints: make([][]Endpoint, len(r.addressTypes)),
	}
	r.byNumbers[string(r.key)] = group
	return group
}

func (r *resolver) families() []Family {
	families := make([]Family, len(r.addressTypes))
	for i, addressType := range r.addressTypes {
		families[i] = Family{AddressType: addressType, Groups: r.groups(i)}
	}
	return families
}

// groups gives the groups of the i-th address type that have endpoints. Two
// assignments of numbers that make the same set of ports, as when two Service
// ports cannot be told apart, become one group.
func (r *resolver) groups(i int) []Group {
	merged := map[PortKey]Group{}
	for _, numbers := range slices.Sorted(maps.Keys(r.byNumbers)) {
		from := r.byNumbers[numbers]
		if len(from.endpoints[i]) == 0 {
			continue
		}
		group := merged[from.key]
		group.Key, group.Ports = from.key, from.ports
		group.Endpoints = append(group.Endpoints, from.endpoints[i]...)
		merged[from.key] = group
	}
	groups := make([]Group, 0, len(merged))
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		groups = append(groups, merged[key])
	}
	return groups
}

// endpoint renders a candidate. A terminating pod is never ready, unless the
// Service publishes its pods whatever their state.
func (r *resolver) endpoint(candidate Candidate, addresses string) Endpoint {
	service, pod := r.service, candidate.Pod
	serving, terminating := Ready(pod), pod.DeletionTimestamp != nil
	result := Endpoint{
		Identity: Identity{
			Addresses:    addresses,
			PodNamespace: pod.Namespace,
			PodName:      pod.Name,
		},
		PodUID:      pod.UID,
		Node:        pod.Spec.NodeName,
		Zone:        candidate.Zone,
		Ready:       service.Spec.PublishNotReadyAddresses || (serving && !terminating),
		Serving:     serving,
		Terminating: terminating,
	}
	if pod.Spec.Subdomain == service.Name {
		result.Hostname = pod.Spec.Hostname
	}
	if result.Ready {
		result.HintZone, result.HintNode = r.mode.Near(result.Zone, result.Node)
	}
	return result
}
