package explain

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// Verdict says how a link stands.
type Verdict uint8

const (
	// Good: as it should be.
	Good Verdict = iota + 1
	// Doubtful: about to change, or at the cost of part of the traffic.
	Doubtful
	// Broken: the pod gets no traffic because of it.
	Broken
	// Absent: it does not apply.
	Absent
)

func (v Verdict) String() string { return [...]string{"", "good", "doubtful", "broken", "absent"}[v] }

// Codes of the links, in their order.
const (
	CodeService     = "SERVICE"
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

// Facts is what is known of one pod in one Service.
type Facts struct {
	// Now is when it was looked at.
	Now     time.Time
	Service *corev1.Service
	// Candidate has the pod, and what is known of its node.
	Candidate desired.Candidate
	// Slices are those of the Service that are ours, in any order.
	Slices []*discoveryv1.EndpointSlice
	// Pending says that a pass over the Service is due, under way or failing; Held that this replica would know.
	Pending, Held bool
	// TopologyProblem says why the Service has no hints though it asks for them.
	TopologyProblem string
}

// Object names an object of Kubernetes.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	Code    string
	Verdict Verdict
	// Finding is one sentence, Next what to do or look at; empty when there is nothing to do.
	Finding, Next string
	Source        string
	Object        Object
	Version       string
	// Time is when it came to be so, or when it was seen.
	Time time.Time
}

// Chain is the evidence for one pod in one Service.
type Chain struct {
	Links []Link
	// FirstBroken is the place of the first broken link, -1 without one.
	FirstBroken int
	// Included says that some slice holds the pod, Settled that what the slices say of it is what they should.
	Included, Settled bool
}

// Explain puts the chain together.
func Explain(f Facts) Chain {
	families := look(f)
	chain := Chain{FirstBroken: -1, Settled: !f.Pending}
	chain.add(f, serviceLink(f))
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

func (c *Chain) add(f Facts, links ...Link) {
	for _, link := range links {
		if link.Time.IsZero() {
			link.Time = f.Now
		}
		link.Finding = bounded(link.Finding)
		if link.Verdict == Broken && c.FirstBroken < 0 {
			c.FirstBroken = len(c.Links)
		}
		c.Links = append(c.Links, link)
	}
}

// selected says whether the Service is managed and its selector matches the pod.
func (f *Facts) selected() bool {
	if index.Management(f.Service) != index.Managed {
		return false
	}
	for key, value := range f.Service.Spec.Selector {
		if has, ok := f.Candidate.Pod.Labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// selectorKeys are the labels of the selector, ordered.
func (f *Facts) selectorKeys() []string { return slices.Sorted(maps.Keys(f.Service.Spec.Selector)) }

func (f *Facts) serviceLink(code string) Link {
	service := f.Service
	return Link{
		Code: code, Source: "service", Version: service.ResourceVersion,
		Object: Object{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: string(service.UID)},
	}
}

func (f *Facts) podLink(code string) Link {
	pod := f.Candidate.Pod
	return Link{
		Code: code, Source: "pod", Version: pod.ResourceVersion,
		Object: Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
	}
}
