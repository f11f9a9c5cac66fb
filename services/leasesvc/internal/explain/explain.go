package explain

import (
	"time"

	"github.com/trivet-dev/trivet/internal/evidence"
)

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

// Chain is the evidence for one Node.
type Chain struct {
	evidence.Chain
	// Silence is how long the Node has given no signal of life; 0 for a Node that gives them in
	// time.
	Silence time.Duration
}

// Explain returns the chain of a Node.
func Explain(f Facts) Chain {
	c := Chain{Silence: f.silence()}
	c.Add(f.Now, leaseLink(f), beatLink(f), expireTimeLink(f), leaseObjectLink(f), readyLink(f),
		noScheduleLink(f), zoneLink(f), noExecuteLink(f), podsLink(f), evictionLink(f))
	return c
}

func (f *Facts) silence() time.Duration {
	if f.Health != Suspect && f.Health != Silent && f.Health != Unknown || f.Heard.IsZero() {
		return 0
	}
	return max(f.Now.Sub(f.Heard), 0)
}
