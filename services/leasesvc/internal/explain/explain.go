package explain

import "time"

// Verdict is the state of a link.
type Verdict uint8

const (
	// Good: as it should be.
	Good Verdict = iota + 1
	// Doubtful: not as it should be, without consequences yet.
	Doubtful
	// Broken: not as it should be, and the cause of what follows.
	Broken
	// Unseen: this replica cannot see it.
	Unseen
	// Absent: it does not apply.
	Absent
)

func (v Verdict) String() string {
	return [...]string{"", "good", "doubtful", "broken", "unseen", "absent"}[v]
}

// Codes of the links, in their order. A test compares docs/reasons.md with them.
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

// Sources of links: objects, or the loops of leasesvc.
const (
	fromSession  = "session"
	fromLease    = "lease-object"
	fromNode     = "node"
	fromPods     = "pod"
	fromHealth   = "node-health"
	fromEviction = "taint-eviction"
)

// Object identifies a Kubernetes object.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	Code    string
	Verdict Verdict
	// Finding is one sentence. Next is what to do, or "".
	Finding, Next string
	Source        string
	// Object is the object that was read, if any.
	Object  Object
	Version string
	// Time is when it became so, or when it was seen.
	Time time.Time
}

// Chain is the evidence for one Node.
type Chain struct {
	Links []Link
	// FirstBroken is the index of the first broken link, or -1.
	FirstBroken int
	// Silence is how long the Node has given no sign of life; 0 for a Node that gives them in time.
	Silence time.Duration
}

// Explain returns the chain of a Node.
func Explain(f Facts) Chain {
	c := Chain{FirstBroken: -1, Silence: f.silence()}
	for i, l := range []Link{
		sessionLink(f), beatLink(f), deadlineLink(f), leaseLink(f), readyLink(f),
		noScheduleLink(f), zoneLink(f), noExecuteLink(f), podsLink(f), evictionLink(f),
	} {
		if l.Time.IsZero() {
			l.Time = f.Now
		}
		if l.Verdict == Broken && c.FirstBroken < 0 {
			c.FirstBroken = i
		}
		c.Links = append(c.Links, l)
	}
	return c
}

func (f *Facts) silence() time.Duration {
	if f.Health != Suspect && f.Health != Silent && f.Health != Unknown || f.Heard.IsZero() {
		return 0
	}
	return max(f.Now.Sub(f.Heard), 0)
}
