package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// unmirroredLinks returns a link that says why an Endpoints object of the Service is not mirrored:
// slicesvc mirrors none, or the Service has a selector. The second says nothing about a Pod.
func unmirroredLinks(f Facts) []evidence.Link {
	switch {
	case f.Mirror == nil && index.UnmanagedReasonOf(f.Service) == index.NoSelector:
		l := notMirrored(CodeEndpoints, "slicesvc mirrors no Endpoints: its loop endpointslice-mirroring is off.")
		l.Next = "Start slicesvc with --loops=*,endpointslice-mirroring, unless kube-controller-manager mirrors them."
		return []evidence.Link{l}
	case f.Mirror != nil && f.Mirror.Endpoints != nil && f.Candidate.Pod == nil:
		l := notMirrored(CodeEndpoints, "Its Endpoints object is not mirrored: the Service has a selector, so its endpoints are Pods.")
		setEndpoints(&l, f.Mirror.Endpoints)
		return []evidence.Link{l}
	default:
		return nil
	}
}

// explainMirror returns the chain of an address of an Endpoints object, or of a Pod of which the
// object may have addresses. The links of a Pod do not apply.
func explainMirror(f Facts) Chain {
	m := f.Mirror
	families := m.families(f.mirrorAddresses())
	resolved := m.resolve()
	var origins []mirror.Origin
	for _, family := range families {
		origins = append(origins, family.origins...)
	}
	chain := Chain{Settled: !m.Pending}
	chain.add(f, mirrorServiceLink(f), mirrorEndpointsLink(f, resolved))
	chain.add(f, notMirrored(CodeSelector, "No selector is matched: the Endpoints object lists its addresses."))
	chain.add(f, notMirrored(CodePhase, "The phase of a Pod does not matter to an Endpoints object."))
	for _, family := range families {
		chain.add(f, mirrorAddressLink(f, family))
	}
	chain.add(f, mirrorNodeLink(f, origins), mirrorReadinessLink(f, origins))
	chain.add(f, notMirrored(CodeTermination, "An Endpoints object does not say whether an address is terminating."))
	chain.add(f, mirrorPortsLink(f, origins))
	for _, family := range families {
		family.fill(f, resolved)
		chain.Included = chain.Included || len(family.places) > 0
		chain.Settled = chain.Settled && family.settled()
		chain.add(f, mirrorSliceLink(f, family))
	}
	chain.add(f, notMirrored(CodeHints, "Mirrored endpoints have no hints."))
	return chain
}

func mirrorServiceLink(f Facts) evidence.Link {
	m := f.Mirror
	l := evidence.Link{Code: CodeService, Source: "service", Object: evidence.Object{APIVersion: "v1", Kind: "Service", Namespace: m.Namespace, Name: m.Name}}
	if f.Service == nil {
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("There is no Service %s/%s: Endpoints are mirrored only for a Service of their name.", m.Namespace, m.Name)
		l.Next = "Create the Service, without a selector, or delete the Endpoints object."
		return l
	}
	l = f.serviceLink(CodeService)
	l.Time = f.Service.CreationTimestamp.Time
	switch {
	case index.UnmanagedReasonOf(f.Service) == index.ExternalName:
		l.Result, l.Message = evidence.Warning, "It is an ExternalName Service: clients use its DNS name, and not the endpoints of its Endpoints object."
	default:
		l.Result, l.Message = evidence.OK, "It has no selector: its endpoints come from the Endpoints object of its name."
	}
	return l
}

// mirrorEndpointsLink says whether the Endpoints object is mirrored, and what it drops.
func mirrorEndpointsLink(f Facts, resolved mirror.Resolved) evidence.Link {
	m := f.Mirror
	l := evidence.Link{Code: CodeEndpoints, Source: "endpoints"}
	if m.Endpoints == nil {
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("There is no Endpoints object %s/%s: another controller or a user writes the Service's EndpointSlices.", m.Namespace, m.Name)
		l.Next = "Create it, or check what writes its slices."
		return l
	}
	setEndpoints(&l, m.Endpoints)
	switch {
	case m.Reason == mirror.SkipMirrorLabel:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("Its Endpoints object is not mirrored: it has the label %s=true.", discoveryv1.LabelSkipMirror)
		l.Next = "Remove the label, or check what writes the Service's slices."
	case m.Reason == mirror.LeaderAnnotation:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("Its Endpoints object is not mirrored: the annotation %s makes it a lock of leader election.", mirror.LeaderElectionAnnotation)
		l.Next = "Use an Endpoints object of another name."
	case m.Reason == mirror.NoService:
		l.Result, l.Message = evidence.NotApplicable, "The Endpoints object is not mirrored: it has no Service."
	case resolved.InvalidCount > 0:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("Its Endpoints object is mirrored, without the invalid addresses: %s.", wording.Quoted(resolved.Invalid, len(resolved.Invalid), maxText))
		l.Next = "Correct what writes the Endpoints object" + m.writerClause() + "."
	case resolved.TooMany > 0:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("Its Endpoints object is mirrored, without %d of the addresses: a subset may have %d.", resolved.TooMany, m.Limits.PerSubset)
		l.Next = nextSpill
	case m.Endpoints.DeletionTimestamp != nil:
		l.Result, l.Time = evidence.Warning, m.Endpoints.DeletionTimestamp.Time
		l.Message = "Its Endpoints object is being deleted: slices are updated, but no slice is created."
	default:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("Its Endpoints object is mirrored; %s%s.", subsetCount(m.Endpoints), m.writerText())
	}
	return l
}

const nextSpill = "Start slicesvc with --mirroring-spill, which writes further slices, or divide the subset."

func setEndpoints(l *evidence.Link, endpoints *corev1.Endpoints) {
	l.Version, l.Time = endpoints.ResourceVersion, triggerTime(endpoints.Annotations)
	l.Object = evidence.Object{APIVersion: "v1", Kind: "Endpoints", Namespace: endpoints.Namespace, Name: endpoints.Name, UID: string(endpoints.UID)}
}

func subsetCount(endpoints *corev1.Endpoints) string {
	if len(endpoints.Subsets) == 1 {
		return "it has 1 subset"
	}
	return fmt.Sprintf("it has %d subsets", len(endpoints.Subsets))
}

// writerText ends a clause about the object, writerClause one about what writes it.
func (m *MirrorFacts) writerText() string {
	if m.Writer == "" {
		return ""
	}
	return fmt.Sprintf(", and %q wrote it last", bounded(m.Writer))
}

func (m *MirrorFacts) writerClause() string {
	if m.Writer == "" {
		return ""
	}
	return fmt.Sprintf("; %q wrote it last", bounded(m.Writer))
}

// absentText says why nothing is known of an address.
func (m *MirrorFacts) absentText() string {
	switch {
	case m.Endpoints == nil:
		return "There is no Endpoints object."
	case !m.ContentKnown:
		return "slicesvc does not read the addresses of an Endpoints object that is not mirrored."
	default:
		return "The Endpoints object does not have it."
	}
}

func notMirrored(code, message string) evidence.Link {
	return evidence.Link{Code: code, Source: "endpoints", Result: evidence.NotApplicable, Message: message}
}

// mirrorAddressLink says which subset an address comes from, or why it is in no slice.
func mirrorAddressLink(f Facts, family mirrorFamily) evidence.Link {
	m := f.Mirror
	l := evidence.Link{Code: CodeAddress, Source: "endpoints"}
	if m.Endpoints == nil || !m.ContentKnown {
		l.Result, l.Message = evidence.NotApplicable, m.absentText()
		return l
	}
	setEndpoints(&l, m.Endpoints)
	if len(family.addresses) == 0 {
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("The Endpoints object has no address of pod %s, and the pod has none yet.", f.Candidate.Pod.Name)
		return l
	}
	origins, address := family.origins, family.addresses[0]
	if len(origins) > 0 {
		address = desired.CanonicalAddress(origins[0].Address.IP)
	}
	kept := slices.DeleteFunc(slices.Clone(origins), func(origin mirror.Origin) bool { return origin.Dropped != "" })
	where := fmt.Sprintf("%s is in %s of %d", address, subsetList(origins), len(m.Endpoints.Subsets))
	switch {
	case len(origins) == 0:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("The Endpoints object does not have %s.", address)
		l.Next = "Correct what writes the Endpoints object" + m.writerClause() + "."
	case len(kept) == len(origins):
		l.Result, l.Message = evidence.OK, where+"."
	case len(kept) > 0:
		l.Result, l.Message = evidence.Warning, where+", and is mirrored for a part of its ports: "+droppedText(origins, m.Limits)+"."
		l.Next = nextOfDropped(origins)
	default:
		l.Result, l.Message = evidence.Failed, where+", and is not mirrored: "+droppedText(origins, m.Limits)+"."
		l.Next = nextOfDropped(origins)
	}
	return l
}

// subsetList names the subsets of origins, counted from 1.
func subsetList(origins []mirror.Origin) string {
	var numbers []string
	for _, origin := range origins {
		if number := fmt.Sprint(origin.Subset + 1); !slices.Contains(numbers, number) {
			numbers = append(numbers, number)
		}
	}
	if len(numbers) == 1 {
		return "subset " + numbers[0]
	}
	if len(numbers) > maxNames {
		numbers = append(numbers[:maxNames], "…")
	}
	return "subsets " + strings.Join(numbers, ", ")
}

// droppedText says why the first dropped origin is in no slice.
func droppedText(origins []mirror.Origin, limits mirror.Limits) string {
	switch firstDropped(origins) {
	case mirror.OverLimit:
		return fmt.Sprintf("the subset has more than %d addresses", limits.PerSubset)
	case mirror.InvalidAddress:
		return "it is no valid IP address"
	case mirror.Duplicate:
		return "another address of the same IP, hostname and target is mirrored instead"
	default:
		return ""
	}
}

func nextOfDropped(origins []mirror.Origin) string {
	if firstDropped(origins) == mirror.OverLimit {
		return nextSpill
	}
	return ""
}

func firstDropped(origins []mirror.Origin) mirror.Dropped {
	for _, origin := range origins {
		if origin.Dropped != "" {
			return origin.Dropped
		}
	}
	return ""
}

func mirrorNodeLink(f Facts, origins []mirror.Origin) evidence.Link {
	l := notMirrored(CodeNode, "The Endpoints object names no node for it.")
	if len(origins) == 0 {
		l.Message = f.Mirror.absentText()
	}
	for _, origin := range origins {
		if name := origin.Address.NodeName; name != nil && *name != "" {
			l.Result, l.Message = evidence.OK, fmt.Sprintf("It is on %s, as the Endpoints object says.", *name)
			l.Object = evidence.Object{APIVersion: "v1", Kind: "Node", Name: *name}
			return l
		}
	}
	return l
}

func mirrorReadinessLink(f Facts, origins []mirror.Origin) evidence.Link {
	l := notMirrored(CodeReadiness, f.Mirror.absentText())
	if len(origins) == 0 {
		return l
	}
	setEndpoints(&l, f.Mirror.Endpoints)
	served, listed := 0, 0
	for _, origin := range origins {
		if origin.Ready {
			listed++
		}
		if origin.ServedReady || origin.Ready && origin.Dropped != "" {
			served++
		}
	}
	switch {
	case served == len(origins):
		l.Result, l.Message = evidence.OK, "It is one of the addresses, so it is ready."
		return l
	case served == 0 && listed == 0:
		l.Result, l.Message = evidence.Failed, "It is one of the notReadyAddresses, so no client routes to it."
	case served == 0:
		l.Result, l.Message = evidence.Failed, "It is one of the addresses, and also one of the notReadyAddresses of the same ports, so no client routes to it."
	default:
		l.Result, l.Message = evidence.Warning, "It is one of the addresses of some ports, and of the notReadyAddresses of others."
	}
	l.Next = "What writes the Endpoints object decides about readiness" + f.Mirror.writerClause() + "."
	return l
}

func mirrorPortsLink(f Facts, origins []mirror.Origin) evidence.Link {
	l := notMirrored(CodePorts, f.Mirror.absentText())
	if len(origins) == 0 {
		return l
	}
	setEndpoints(&l, f.Mirror.Endpoints)
	var texts []string
	for _, origin := range origins {
		text := endpointPorts(f.Mirror.Endpoints.Subsets[origin.Subset].Ports)
		if !slices.Contains(texts, text) && len(texts) < maxNames {
			texts = append(texts, text)
		}
	}
	l.Result, l.Message = evidence.OK, "It has the ports "+strings.Join(texts, "; ")+"."
	if len(texts) == 1 && texts[0] == "" {
		l.Message = "Its subset has no ports: clients choose them."
	}
	return l
}

func endpointPorts(ports []corev1.EndpointPort) string {
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		texts = append(texts, strings.TrimSpace(fmt.Sprintf("%s %d/%s", port.Name, port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP))))
	}
	return strings.Join(texts, ", ")
}

const nextFormer = "Slices of a Service that has lost its selector stay, unless --cleanup-selectorless is set."

func mirrorSliceLink(f Facts, m mirrorFamily) evidence.Link {
	l := evidence.Link{Code: CodeSlice, Source: "endpointslice"}
	missing := m.missing()
	switch {
	case len(m.places) == 0 && len(m.planned) == 0 && len(m.former) > 0:
		setSlice(&l, m.former[0].slice)
		l.Result = evidence.Warning
		l.Message = fmt.Sprintf("It is in %s, which the Service has from its former selector.", m.former[0].slice.Name)
		l.Next = nextFormer
		return l
	case len(m.places) == 0 && len(m.planned) == 0:
		l.Result, l.Message = evidence.NotApplicable, fmt.Sprintf("It is in no %s slice, as planned.", m.addressType)
		return l
	case len(m.places) == 0:
		l.Result, l.Message, l.Next = evidence.Failed, fmt.Sprintf("It is in no %s slice yet, but should be in one.", m.addressType), f.nextMirrorWrite()
		return l
	}
	at := m.places[0]
	setSlice(&l, at.slice)
	position := fmt.Sprintf("It is endpoint %d of %d in %s", at.position, len(at.slice.Endpoints), at.slice.Name)
	if more := len(m.places) - 1; more > 0 {
		position += fmt.Sprintf(", and %d more for other ports", more)
	}
	switch {
	case len(m.planned) == 0:
		l.Result, l.Message, l.Next = evidence.Warning, position+", but should not be.", f.nextMirrorWrite()
	case missing != nil || len(m.places) != len(m.planned):
		l.Result, l.Message, l.Next = evidence.Warning, position+", but not as the Endpoints object has it.", f.nextMirrorWrite()
	case len(m.former) > 0:
		l.Result, l.Message = evidence.Warning, position+fmt.Sprintf(", and in %s, which the Service has from its former selector.", m.former[0].slice.Name)
		l.Next = nextFormer
	default:
		l.Result, l.Message = evidence.OK, position+"."
	}
	return l
}

func (f *Facts) nextMirrorWrite() string {
	pending := Facts{Pending: f.Mirror.Pending, Held: f.Held}
	return pending.nextWrite()
}
