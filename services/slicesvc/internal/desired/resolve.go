package desired

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// Endpoints are the endpoints that a Service should have.
type Endpoints struct {
	// Families has every family that the Service is served in, IPv4 first, also one without an
	// endpoint.
	Families []Family
	// MissingNodes names the Nodes that do not exist although a Pod of the Service is bound to
	// them, sorted. Once one of them exists, the endpoints change.
	MissingNodes []string
}

// Family has the endpoints of one address family.
type Family struct {
	AddressType discoveryv1.AddressType
	// Groups are ordered by key; each has an endpoint.
	Groups []Group
}

// Group has the endpoints that serve the same set of ports.
type Group struct {
	Key       PortKey
	Ports     []discoveryv1.EndpointPort
	Endpoints []Endpoint
}

// Candidate is a Pod that the Service's selector matches, with what is known of its Node.
type Candidate struct {
	// Pod is only read.
	Pod *corev1.Pod
	// NodeKnown tells that the Node in spec.nodeName exists.
	NodeKnown bool
	// Zone is the Node's label topology.kubernetes.io/zone; empty when it has none or is not known.
	Zone string
}

// Resolve returns the endpoints of a Service. The endpoints of a group are in the order of the
// candidates.
func Resolve(service *corev1.Service, candidates []Candidate) Endpoints {
	return ResolveEach(service, slices.Values(candidates))
}

// ResolveEach is Resolve for a sequence in which each candidate is valid only until the next one:
// it keeps nothing of a Pod but strings.
//
// As upstream has it, a Pod has no endpoint when it is Failed or Succeeded, because another Pod may
// have its address by now; when it has no IP; or when its Node does not exist, unless the Service
// publishes addresses that are not ready.
func ResolveEach(service *corev1.Service, candidates iter.Seq[Candidate]) Endpoints {
	resolver := newResolver(service)
	missing := map[string]struct{}{}
	for candidate := range candidates {
		pod := candidate.Pod
		if Finished(pod) || len(pod.Status.PodIPs) == 0 {
			continue
		}
		if !candidate.NodeKnown {
			if pod.Spec.NodeName != "" {
				missing[pod.Spec.NodeName] = struct{}{}
			}
			if !service.Spec.PublishNotReadyAddresses {
				continue
			}
		}
		resolver.add(candidate)
	}
	return Endpoints{
		Families:     resolver.families(),
		MissingNodes: slices.Sorted(maps.Keys(missing)),
	}
}

// resolver collects endpoints by family and by the port numbers that the Service's ports have on a
// Pod. Nearly always all Pods of a Service have the same ones.
type resolver struct {
	service      *corev1.Service
	mode         hints.Mode
	addressTypes []discoveryv1.AddressType
	byNumbers    map[string]*portGroup
	// numbers and key are buffers.
	numbers []int32
	key     []byte
}

// portGroup has the endpoints of Pods with the same ports, by the index of the address type.
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
		if addresses := Addresses(candidate.Pod, addressType); addresses != "" {
			group.endpoints[i] = append(group.endpoints[i], r.endpoint(candidate, addresses))
		}
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

// endpoint returns the endpoint of a candidate. A terminating Pod is ready only if the Service
// publishes addresses that are not ready.
func (r *resolver) endpoint(candidate Candidate, addresses string) Endpoint {
	service, pod := r.service, candidate.Pod
	serving, terminating := Ready(pod), pod.DeletionTimestamp != nil
	result := Endpoint{
		Identity: Identity{
			Addresses:    addresses,
			PodNamespace: pod.Namespace,
			PodName:      pod.Name,
		},
		Target:      Target(pod.UID),
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

func (r *resolver) families() []Family {
	families := make([]Family, len(r.addressTypes))
	for i, addressType := range r.addressTypes {
		families[i] = Family{AddressType: addressType, Groups: r.groups(i)}
	}
	return families
}

// groups returns the groups of the i-th address type that have endpoints. Different port numbers
// may make the same set of ports, for example when two Service ports are equal but for their
// targets; they become one group.
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
