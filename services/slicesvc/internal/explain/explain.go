package explain

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// Chain is the evidence for one endpoint of one Service.
type Chain struct {
	Links []Link
	// BrokenIndex is the index of the first failed link, -1 if there is none.
	BrokenIndex int
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
	chain := Chain{BrokenIndex: -1, Settled: !f.Pending}
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

func (c *Chain) add(f Facts, links ...Link) {
	for _, link := range links {
		if link.Time.IsZero() {
			link.Time = f.Now
		}
		link.Message = bounded(link.Message)
		if link.Result == Failed && c.BrokenIndex < 0 {
			c.BrokenIndex = len(c.Links)
		}
		c.Links = append(c.Links, link)
	}
}

// Result is how a link stands.
type Result uint8

const (
	// OK means that the link is as it should be.
	OK Result = iota + 1
	// Warning means that something is about to change, or that a part of the traffic is lost.
	Warning
	// Failed means that the endpoint gets no traffic because of the link.
	Failed
	// NotApplicable means that the link does not apply.
	NotApplicable
)

func (r Result) String() string {
	return [...]string{"", "OK", "WARNING", "FAILED", "NOT_APPLICABLE"}[r]
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

// Object names a Kubernetes object.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	Code   string
	Result Result
	// Message is one sentence. Next is what to do or to check; it may be empty.
	Message, Next string
	Source        string
	Object        Object
	Version       string
	// Time is when the message became true, or Facts.Now.
	Time time.Time
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

// maxNames bounds how many names a sentence lists.
const maxNames = 5

// formatTime formats t in UTC, without the date if it is the date of now.
func formatTime(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05") + " UTC"
	}
	return t.Format("2006-01-02 15:04:05") + " UTC"
}

func joinFamilies(families []discoveryv1.AddressType) string {
	names := make([]string, len(families))
	for i, family := range families {
		names[i] = string(family)
	}
	return strings.Join(names, " and ")
}

func quoted(names []string) string {
	var text []string
	for i, name := range names {
		if i == maxNames {
			text = append(text, "…")
			break
		}
		text = append(text, strconv.Quote(bounded(name)))
	}
	return strings.Join(text, ", ")
}

// clause returns a sentence without its end, to be used within another sentence.
func clause(text string) string {
	return strings.TrimSuffix(bounded(text), ".")
}

// bounded returns text of an object as one short line.
func bounded(text string) string {
	const maxLength = 400
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= maxLength {
		return text
	}
	return strings.ToValidUTF8(text[:maxLength], "") + "…"
}
