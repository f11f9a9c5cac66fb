package explain

import "time"

// Result is the state of a link.
type Result uint8

const (
	// ResultOK: as it should be.
	ResultOK Result = iota + 1
	// ResultWarning: not as it should be, without consequences yet.
	ResultWarning
	// ResultFailed: not as it should be, and the cause of what follows.
	ResultFailed
	// ResultUnknown: this replica cannot see it.
	ResultUnknown
	// ResultNotApplicable: it does not apply.
	ResultNotApplicable
)

func (r Result) String() string {
	return [...]string{"", "OK", "WARNING", "FAILED", "UNKNOWN", "NOT_APPLICABLE"}[r]
}

// Codes of the links, in their order. A test compares docs/reasons.md with them.
const (
	CodeLease       = "LEASE"
	CodeLastBeat    = "LAST_BEAT"
	CodeExpireTime  = "EXPIRE_TIME"
	CodeLeaseObject = "LEASE_OBJECT"
	CodeReady       = "READY_CONDITION"
	CodeNoSchedule  = "NO_SCHEDULE_TAINT"
	CodeZone        = "ZONE"
	CodeNoExecute   = "NO_EXECUTE_TAINT"
	CodePods        = "PODS"
	CodeEviction    = "EVICTION"
)

// Sources of links: objects, or the loops of leasesvc.
const (
	fromLease       = "lease"
	fromLeaseObject = "lease-object"
	fromNode        = "node"
	fromPods        = "pod"
	fromHealth      = "node-health"
	fromEviction    = "taint-eviction"
)

// Object identifies a Kubernetes object.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	Code   string
	Result Result
	// Message is one sentence. Next is what to do, or "".
	Message, Next string
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
	// BrokenIndex is the index of the first link that failed, or -1.
	BrokenIndex int
	// Silence is how long the Node has given no signal of life; 0 for a Node that gives them in
	// time.
	Silence time.Duration
}

// Explain returns the chain of a Node.
func Explain(f Facts) Chain {
	c := Chain{BrokenIndex: -1, Silence: f.silence()}
	for i, l := range []Link{
		leaseLink(f), beatLink(f), expireTimeLink(f), leaseObjectLink(f), readyLink(f),
		noScheduleLink(f), zoneLink(f), noExecuteLink(f), podsLink(f), evictionLink(f),
	} {
		if l.Time.IsZero() {
			l.Time = f.Now
		}
		if l.Result == ResultFailed && c.BrokenIndex < 0 {
			c.BrokenIndex = i
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
