package class

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Node is the name of the class whose holders are Nodes.
const Node = "node"

const (
	// minInterval keeps a mistyped interval from flooding the service.
	minInterval = 100 * time.Millisecond
	// maxDuration keeps sums of durations from overflowing.
	maxDuration = 366 * 24 * time.Hour
	// maxMissed bounds SuspectAfter.
	maxMissed = 100
)

// Class holds the settings of one kind of holder.
type Class struct {
	// Name is the class name in the API; a DNS label.
	Name string
	// Namespace contains the Lease objects of the class. Each class has its own.
	Namespace string
	// HeartbeatInterval is the time between two beats that the service asks for.
	HeartbeatInterval time.Duration
	// SuspectAfter is the number of missed beats after which a holder is suspect.
	SuspectAfter int
	// Grace is how long a session lives without a beat.
	Grace time.Duration
	// RenewInterval is the time between two writes of a Lease object, with the write policy Mirror.
	RenewInterval time.Duration
	// LeaseDuration is the leaseDurationSeconds of the Lease objects; whole seconds.
	LeaseDuration time.Duration
	// Retention is how long the API shows an expired session.
	Retention time.Duration
	// OwnedByNode is set if each holder has the name of a Node, which owns the Lease object.
	OwnedByNode bool
	// HolderRule says which identities may beat for which holders.
	HolderRule HolderRule
}

// DefaultNode returns the class "node", with the Lease settings of upstream's kubelet.
func DefaultNode() Class {
	return Class{
		Name:              Node,
		Namespace:         "kube-node-lease",
		HeartbeatInterval: 5 * time.Second,
		SuspectAfter:      2,
		Grace:             20 * time.Second,
		RenewInterval:     10 * time.Second,
		LeaseDuration:     40 * time.Second,
		Retention:         time.Hour,
		OwnedByNode:       true,
		HolderRule:        HolderRule{Type: RuleNode},
	}
}

// Session returns the settings that the session table uses.
func (c *Class) Session() session.Class {
	return session.Class{
		Name: c.Name, Interval: c.HeartbeatInterval, Suspect: c.suspectSilence(), TTL: c.Grace, Retention: c.Retention,
	}
}

// suspectSilence is the silence that makes a holder suspect: half an interval after the last missed
// beat was due, so that one late beat does not.
func (c *Class) suspectSilence() time.Duration {
	return time.Duration(c.SuspectAfter)*c.HeartbeatInterval + c.HeartbeatInterval/2
}

// Validate returns every problem of the class. fromFlags names its settings by their own flags
// instead of by --classes.
func (c *Class) Validate(fromFlags bool) []error {
	var problems []error
	report := func(format string, arguments ...any) { problems = append(problems, fmt.Errorf(format, arguments...)) }
	setting := func(flag, field string) string {
		if fromFlags {
			return flag
		}
		return fmt.Sprintf("--classes: %s of %q", field, c.Name)
	}
	interval, suspectAfter := setting("--heartbeat-interval", "heartbeatInterval"), setting("--heartbeat-suspect-after", "suspectAfter")
	grace, retention := setting("--heartbeat-grace-period", "grace"), setting("--expired-session-retention", "retention")
	renewInterval, leaseDuration := setting("--lease-renew-interval", "renewInterval"), setting("--lease-duration", "leaseDuration")

	for _, part := range []struct{ field, name string }{{"name", c.Name}, {"namespace", c.Namespace}} {
		if failures := validation.IsDNS1123Label(part.name); len(failures) > 0 {
			report("class %q: %s %q: %s", c.Name, part.field, part.name, strings.Join(failures, "; "))
		}
	}
	for _, s := range []struct {
		name     string
		duration time.Duration
	}{
		{interval, c.HeartbeatInterval}, {grace, c.Grace}, {renewInterval, c.RenewInterval},
		{leaseDuration, c.LeaseDuration}, {retention, c.Retention},
	} {
		if s.duration > maxDuration {
			report("%s is %v, must be a year at most", s.name, s.duration)
		}
	}
	if c.HeartbeatInterval < minInterval {
		report("%s is %v, must be %v or more", interval, c.HeartbeatInterval, minInterval)
	}
	if c.RenewInterval < minInterval {
		report("%s is %v, must be %v or more", renewInterval, c.RenewInterval, minInterval)
	}
	if c.SuspectAfter < 1 || c.SuspectAfter > maxMissed {
		report("%s is %d, must be 1 to %d", suspectAfter, c.SuspectAfter, maxMissed)
	}
	if c.Grace <= c.suspectSilence() {
		report("%s is %v, must be longer than the %v after which a holder is suspect that has missed %d beats, one every %v",
			grace, c.Grace, c.suspectSilence(), c.SuspectAfter, c.HeartbeatInterval)
	}
	if c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0 {
		report("%s is %v, must be whole seconds and at least one", leaseDuration, c.LeaseDuration)
	}
	if c.LeaseDuration < c.Grace {
		report("%s is %v, must not be shorter than the %v of %s: a Lease would lapse before the session of its holder expires",
			leaseDuration, c.LeaseDuration, c.Grace, grace)
	}
	if c.RenewInterval >= c.LeaseDuration {
		report("%s is %v, must be shorter than the %v of %s", renewInterval, c.RenewInterval, c.LeaseDuration, leaseDuration)
	}
	if err := c.HolderRule.Validate(); err != nil {
		report("--classes: holderRule of %q: %w", c.Name, err)
	}
	if c.Retention < 0 {
		report("%s is %v, must not be negative", retention, c.Retention)
	}
	return problems
}
