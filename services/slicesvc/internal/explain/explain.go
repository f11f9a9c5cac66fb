package explain

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// Chain is the evidence for one endpoint of one Service.
type Chain struct {
	evidence.Chain
	// Included says that a slice has the endpoint. Settled says that the slices are as planned for
	// it.
	Included, Settled bool
}

// Explain returns the chain of the facts.
func Explain(f Facts) Chain {
	if f.concernsMirror() {
		return explainMirror(f)
	}
	if f.Candidate.Pod == nil {
		return explainAddress(f)
	}
	families := findFamilies(f)
	chain := Chain{Settled: !f.Pending}
	chain.add(f, serviceLink(f))
	chain.add(f, unmirroredLinks(f)...)
	for _, link := range selectorLinks(f) {
		chain.add(f, link)
	}
	chain.add(f, phaseLink(f))
	for _, family := range families {
		chain.add(f, addressLink(f, family, families))
	}
	chain.add(f, nodeLink(f), readinessLink(f), terminationLink(f), portsLink(f))
	for _, family := range families {
		chain.Included = chain.Included || len(family.places) > 0
		chain.Settled = chain.Settled && family.settled()
		chain.add(f, sliceLink(f, family))
	}
	chain.add(f, hintsLink(f, families))
	return chain
}

func (c *Chain) add(f Facts, links ...evidence.Link) {
	for _, link := range links {
		link.Message = bounded(link.Message)
		c.Add(f.Now, link)
	}
}

// Codes of the links, in order.
const (
	CodeService     = "SERVICE"
	CodeEndpoints   = "ENDPOINTS"
	CodeSelector    = "SELECTOR"
	CodePhase       = "PHASE"
	CodeAddress     = "ADDRESS"
	CodeNode        = "NODE"
	CodeReadiness   = "READINESS"
	CodeTermination = "TERMINATION"
	CodePorts       = "PORTS"
	CodeSlice       = "SLICE"
	CodeHints       = "HINTS"
)

// Facts is what one replica knows of one Pod or address in one Service.
type Facts struct {
	// Now is the time of the explanation.
	Now time.Time
	// Service is nil if Mirror has an Endpoints object without a Service.
	Service *corev1.Service
	// Mirror is nil if slicesvc does not mirror Endpoints.
	Mirror *MirrorFacts
	// Candidate has the Pod and its Node. Its Pod is nil if no Pod of the namespace has Address.
	Candidate desired.Candidate
	// Address is the canonical address that was asked for; empty if a Pod was.
	Address string
	// Slices are the managed slices of the Service, unordered.
	Slices []*discoveryv1.EndpointSlice
	// Pending says that a sync of the Service is due, running or failing. Held says that this
	// replica leads the shard, and so knows.
	Pending, Held bool
	// TopologyProblem says why a Service that asks for hints has none.
	TopologyProblem string
}

// selected returns whether the Service is managed and selects the Pod.
func (f *Facts) selected() bool {
	if !index.Managed(f.Service) {
		return false
	}
	for key, value := range f.Service.Spec.Selector {
		if has, ok := f.Candidate.Pod.Labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// selectorKeys returns the label keys of the selector, sorted.
func (f *Facts) selectorKeys() []string { return slices.Sorted(maps.Keys(f.Service.Spec.Selector)) }

func (f *Facts) serviceLink(code string) evidence.Link {
	service := f.Service
	return evidence.Link{
		Code: code, Source: "service", Version: service.ResourceVersion,
		Object: evidence.Object{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: string(service.UID)},
	}
}

func (f *Facts) podLink(code string) evidence.Link {
	pod := f.Candidate.Pod
	return evidence.Link{
		Code: code, Source: "pod", Version: pod.ResourceVersion,
		Object: evidence.Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
	}
}

// maxNames bounds how many names a sentence lists.
const maxNames = 5

func joinFamilies(families []discoveryv1.AddressType) string {
	names := make([]string, len(families))
	for i, family := range families {
		names[i] = string(family)
	}
	return strings.Join(names, " and ")
}

// clause returns a sentence without its end, to be used within another sentence.
func clause(text string) string {
	return strings.TrimSuffix(bounded(text), ".")
}

// maxText bounds a text of an object.
const maxText = 400

// bounded returns text of an object as one short line.
func bounded(text string) string { return wording.Line(text, maxText) }
