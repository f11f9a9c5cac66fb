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

// Verdict is the state of a link.
type Verdict uint8

const (
	// Good means that the link is as it should be.
	Good Verdict = iota + 1
	// Doubtful means that something is about to change, or that a part of the traffic is lost.
	Doubtful
	// Broken means that the Pod gets no traffic because of the link.
	Broken
	// Absent means that the link does not apply.
	Absent
)

func (v Verdict) String() string { return [...]string{"", "good", "doubtful", "broken", "absent"}[v] }

// Codes of the links, in order.
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

// Facts is what one replica knows of one Pod in one Service.
type Facts struct {
	// Now is the time of the explanation.
	Now     time.Time
	Service *corev1.Service
	// Candidate has the Pod and its Node.
	Candidate desired.Candidate
	// Slices are the managed slices of the Service, unordered.
	Slices []*discoveryv1.EndpointSlice
	// Pending says that a sync of the Service is due, running or failing. Held says that this
	// replica holds the shard, and so knows.
	Pending, Held bool
	// TopologyProblem says why a Service that asks for hints has none.
	TopologyProblem string
}

// Object names a Kubernetes object.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	Code    string
	Verdict Verdict
	// Finding is one sentence. Next is what to do or to check; it may be empty.
	Finding, Next string
	Source        string
	Object        Object
	Version       string
	// Time is when the finding became true, or Facts.Now.
	Time time.Time
}

// selected returns whether the Service is managed and selects the Pod.
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
