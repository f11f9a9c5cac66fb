package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

func sliceLink(f Facts, m family) evidence.Link {
	l := evidence.Link{Code: CodeSlice, Source: "endpointslice"}
	if len(m.places) > 0 {
		setSlice(&l, m.places[0].slice)
	}
	switch {
	case len(m.places) == 0 && m.planned == nil:
		l.Result, l.Message = evidence.NotApplicable, fmt.Sprintf("It is in no %s slice, as planned.", m.addressType)
	case len(m.places) == 0:
		l.Result, l.Message, l.Next = evidence.Failed, fmt.Sprintf("It is in no %s slice yet, but should be in one.", m.addressType), f.nextWrite()
	case len(m.places) > 1:
		l.Result, l.Next = evidence.Warning, f.nextWrite()
		l.Message = fmt.Sprintf("It is in %d endpoints of %s slices, the first in %s; it is being moved, or one of them is stale.",
			len(m.places), m.addressType, m.places[0].slice.Name)
	case m.planned == nil || !m.served:
		l.Result, l.Message = evidence.Warning, m.position()+", but should not be."
		if index.Managed(f.Service) {
			l.Next = f.nextWrite()
		} else {
			l.Next = "Slices of a Service that is no longer managed stay, unless --cleanup-selectorless is set."
		}
	default:
		l.Result, l.Message = evidence.OK, m.position()+"."
		if drift := m.drift(m.places[0]); drift != "" {
			l.Result, l.Message, l.Next = evidence.Warning, m.position()+", "+drift+".", f.nextWrite()
		}
	}
	return l
}

func setSlice(l *evidence.Link, slice *discoveryv1.EndpointSlice) {
	l.Version, l.Time = slice.ResourceVersion, triggerTime(slice.Annotations)
	l.Object = evidence.Object{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", Namespace: slice.Namespace, Name: slice.Name, UID: string(slice.UID)}
}

// position returns a sentence without its end, such as "It is endpoint 3 of 57 in web-x7k2p".
func (m *family) position() string {
	at := m.places[0]
	return fmt.Sprintf("It is endpoint %d of %d in %s", at.position, len(at.slice.Endpoints), at.slice.Name)
}

// nextWrite says when the slice will be corrected.
func (f *Facts) nextWrite() string {
	switch {
	case f.Pending:
		return "A sync of the Service is due, running or failing; trivet slices shows the result of the last one."
	case !f.Held:
		return "The leader of the Service's shard writes it; trivet slices shows the result of its last sync."
	default:
		return "No sync is due here: trivet slices plan shows what would be written, and whether the cache is late."
	}
}

// triggerTime returns the time of the change that a slice was last written for; zero if unknown.
func triggerTime(annotations map[string]string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func hintsLink(f Facts, families []family) evidence.Link {
	l := f.serviceLink(CodeHints)
	text := hints.ModeName(f.Service)
	if text == "" {
		l.Result, l.Message = evidence.NotApplicable, "The Service does not ask for hints."
		return l
	}
	var of *place
	ready := false
	for _, family := range families {
		ready = ready || family.planned != nil && family.planned.Ready
		if len(family.places) > 0 && of == nil {
			of = &family.places[0]
		}
	}
	switch {
	case of == nil || !ready:
		l.Result, l.Message = evidence.NotApplicable, fmt.Sprintf("The Service asks for %s; only ready endpoints have hints.", text)
	case of.endpoint.HintNode != "" && of.endpoint.HintZone == "":
		l.Result, l.Message = evidence.OK, fmt.Sprintf("Because of %s, it is for clients on node %s, which has no zone.", text, of.endpoint.HintNode)
	case of.endpoint.HintNode != "":
		l.Result, l.Message = evidence.OK, fmt.Sprintf("Because of %s, it is for clients on node %s, else in zone %s.", text, of.endpoint.HintNode, of.endpoint.HintZone)
	case of.endpoint.HintZone != "":
		l.Result, l.Message = evidence.OK, fmt.Sprintf("Because of %s, it is for clients in zone %s.", text, of.endpoint.HintZone)
	case f.TopologyProblem != "":
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("The Service asks for %s, but has no hints: %s.", text, clause(f.TopologyProblem))
		l.Next = "Without hints, traffic goes to all endpoints evenly."
	default:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("The Service asks for %s, but the pod's endpoint has no hint; unless every ready endpoint has one, traffic goes to all evenly.", text)
		l.Next = "Hints need the label topology.kubernetes.io/zone on every node."
	}
	return l
}

// family is the Pod in one address family of the Service: the planned endpoint and the actual ones.
type family struct {
	addressType discoveryv1.AddressType
	// served is false for a family that the Service does not have, but in which a slice has the
	// Pod.
	served bool
	// planned is the endpoint that the Pod should have; nil for none. It has no hints in mode Auto.
	planned *desired.Endpoint
	ports   desired.PortKey
	// auto says that the hints depend on all Nodes.
	auto bool
	// places are the endpoints of the Pod, ordered by slice and position.
	places []place
}

// place is one endpoint of the Pod in a slice.
type place struct {
	slice    *discoveryv1.EndpointSlice
	position int
	endpoint desired.Endpoint
	exact    bool
}

// findFamilies returns the families of the Service, and those in which a slice has the Pod.
func findFamilies(f Facts) []family {
	var wanted []desired.Family
	if f.selected() {
		wanted = desired.Resolve(f.Service, []desired.Candidate{f.Candidate}).Families
	}
	var families []family
	for _, addressType := range desired.Families(f.Service) {
		families = append(families, family{addressType: addressType, served: true})
	}
	for _, slice := range f.Slices {
		served := slices.ContainsFunc(families, func(known family) bool { return known.addressType == slice.AddressType })
		if !served && len(placesIn(f, slice)) > 0 {
			families = append(families, family{addressType: slice.AddressType})
		}
	}
	slices.SortStableFunc(families, func(a, b family) int { return cmp.Compare(a.addressType, b.addressType) })
	for i := range families {
		families[i].fill(f, wanted)
	}
	return families
}

func (m *family) fill(f Facts, wanted []desired.Family) {
	m.auto = hints.ModeOf(f.Service) == hints.Auto
	for _, family := range wanted {
		if family.AddressType == m.addressType && len(family.Groups) > 0 {
			m.planned, m.ports = &family.Groups[0].Endpoints[0], family.Groups[0].Key
		}
	}
	for _, slice := range f.Slices {
		if slice.AddressType == m.addressType {
			m.places = append(m.places, placesIn(f, slice)...)
		}
	}
	slices.SortStableFunc(m.places, func(a, b place) int { return cmp.Compare(a.slice.Name, b.slice.Name) })
}

func placesIn(f Facts, slice *discoveryv1.EndpointSlice) []place {
	var places []place
	for i := range slice.Endpoints {
		endpoint, exact := desired.FromObject(&slice.Endpoints[i])
		if endpoint.PodNamespace == f.Candidate.Pod.Namespace && endpoint.PodName == f.Candidate.Pod.Name {
			places = append(places, place{slice: slice, position: i + 1, endpoint: endpoint, exact: exact})
		}
	}
	return places
}

// settled returns whether the slices have exactly the planned endpoint.
func (m *family) settled() bool {
	switch len(m.places) {
	case 0:
		return m.planned == nil
	case 1:
		return m.served && m.planned != nil && m.drift(m.places[0]) == ""
	default:
		return false
	}
}

// drift says how an endpoint differs from the planned one; empty if it does not.
func (m *family) drift(at place) string {
	has, wants := at.endpoint, *m.planned
	if m.auto {
		has.HintZone, has.HintNode, wants.HintZone, wants.HintNode = "", "", "", ""
	}
	switch {
	case has.Target != wants.Target:
		return "but as an earlier pod of that name"
	case has.Identity != wants.Identity:
		return "but with the address " + has.Addresses
	case has.Ready != wants.Ready, has.Serving != wants.Serving, has.Terminating != wants.Terminating:
		return "but as " + condition(has)
	case desired.KeyOf(at.slice.Ports) != m.ports:
		return "but with the ports " + desired.PortText(at.slice.Ports)
	case has != wants:
		return "but with another node, zone or hint"
	case !at.exact:
		return "but as another writer encoded it"
	}
	return ""
}

func condition(endpoint desired.Endpoint) string {
	switch {
	case endpoint.Terminating:
		return "terminating"
	case endpoint.Ready:
		return "ready"
	default:
		return "not ready"
	}
}
