package explain

import (
	"time"
)

// Verdict says how a link stands.
type Verdict uint8

const (
	// Good: as it should be.
	Good Verdict = iota + 1
	// Doubtful: not as it should be, and nothing follows from it yet.
	Doubtful
	// Broken: not as it should be, and what follows is its consequence.
	Broken
	// Unseen: it could not be looked at.
	Unseen
	// Absent: it does not apply.
	Absent
)

func (v Verdict) String() string {
	return [...]string{"", "good", "doubtful", "broken", "unseen", "absent"}[v]
}

// Codes of the links, in their order.
const (
	CodeSession    = "SESSION"
	CodeLastBeat   = "LAST_BEAT"
	CodeDeadline   = "DEADLINE"
	CodeLease      = "LEASE_OBJECT"
	CodeReady      = "READY_CONDITION"
	CodeNoSchedule = "NO_SCHEDULE_TAINT"
	CodeZone       = "ZONE"
	CodeNoExecute  = "NO_EXECUTE_TAINT"
	CodePods       = "PODS"
	CodeEviction   = "EVICTION"
)

// Where links are found, beside the names of loops.
const (
	fromSession  = "session"
	fromLease    = "lease-object"
	fromNode     = "node"
	fromPods     = "pod"
	fromHealth   = "node-health"
	fromEviction = "taint-eviction"
)

// Object names an object of Kubernetes.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	Code    string
	Verdict Verdict
	// Finding is one sentence, Next what to do or look at; empty when there is nothing to do.
	Finding, Next string
	Source        string
	// Object is the zero Object when what was looked at is none.
	Object  Object
	Version string
	// Time is when it came to be so, or when it was seen.
	Time time.Time
}

// Chain is the evidence for one Node.
type Chain struct {
	Links []Link
	// FirstBroken is the place of the first broken link, -1 without one.
	FirstBroken int
	// Silence is for how long the Node has not been heard; 0 while it gives signs of life.
	Silence time.Duration
}

// Explain puts the chain together.
func Explain(f Facts) Chain {
	c := Chain{FirstBroken: -1, Silence: f.silence()}
	for _, link := range []func(Facts) Link{
		sessionLink, beatLink, deadlineLink, leaseLink, readyLink, noScheduleLink, zoneLink, noExecuteLink, podsLink, evictionLink,
	} {
		l := link(f)
		if l.Time.IsZero() {
			l.Time = f.Now
		}
		if l.Verdict == Broken && c.FirstBroken < 0 {
			c.FirstBroken = len(c.Links)
		}
		c.Links = append(c.Links, l)
	}
	return c
}

// silence is counted only for nodes that are not heard in time.
func (f *Facts) silence() time.Duration {
	if f.Health != Suspect && f.Health != Silent && f.Health != Unknown || f.Heard.IsZero() {
		return 0
	}
	return max(f.Now.Sub(f.Heard), 0)
}

// nodeLink is a link that was found in the Node.
func (f *Facts) nodeLink(code string) Link {
	return Link{Code: code, Source: fromNode, Version: f.Node.ResourceVersion, Object: Object{
		APIVersion: "v1", Kind: "Node", Name: f.Node.Name, UID: string(f.Node.UID),
	}}
}
