package leasesvc

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// NodeClass is the class of the holders that are Nodes.
const NodeClass = "node"

const (
	// minInterval keeps a mistyped interval from turning a fleet into a flood.
	minInterval = 100 * time.Millisecond
	// maxTime keeps sums of times from becoming times in the past.
	maxTime = 366 * 24 * time.Hour
	// maxMissed keeps the silence of a suspect countable.
	maxMissed = 100
)

// Class is the rule for one kind of holder.
type Class struct {
	// Name is what holders call their class.
	Name string
	// Namespace is where the Leases of the class live; no two classes share one.
	Namespace string
	// HeartbeatInterval is the time between two beats that holders are asked for.
	HeartbeatInterval time.Duration
	// SuspectAfter is how many beats a holder must have missed to be suspect.
	SuspectAfter int
	// Grace is how long a session lives without a beat.
	Grace time.Duration
	// RenewInterval is the time between two writes of a Lease whose holder beats.
	RenewInterval time.Duration
	// LeaseDuration is what a Lease promises its readers.
	LeaseDuration time.Duration
	// Retention is how long an expired session is shown before it is forgotten.
	Retention time.Duration
	// OwnedByNode says that a holder bears the name of a Node, which owns its Lease.
	OwnedByNode bool
}

func defaultNodeClass() Class {
	return Class{
		Name:              NodeClass,
		Namespace:         "kube-node-lease",
		HeartbeatInterval: 5 * time.Second,
		SuspectAfter:      2,
		Grace:             20 * time.Second,
		RenewInterval:     10 * time.Second,
		LeaseDuration:     40 * time.Second,
		Retention:         time.Hour,
		OwnedByNode:       true,
	}
}

func (c *Class) registerFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.HeartbeatInterval, "heartbeat-interval", c.HeartbeatInterval,
		"Time between two heartbeats that nodes are asked for.")
	fs.IntVar(&c.SuspectAfter, "heartbeat-suspect-after", c.SuspectAfter,
		"How many heartbeats a node must have missed to be suspect.")
	fs.DurationVar(&c.Grace, "heartbeat-grace-period", c.Grace,
		"How long a node's session lives without a heartbeat.")
	fs.DurationVar(&c.RenewInterval, "lease-renew-interval", c.RenewInterval,
		"Time between two writes of a node's Lease object.")
	fs.DurationVar(&c.LeaseDuration, "lease-duration", c.LeaseDuration,
		"The duration in a node's Lease object; whole seconds, not shorter than --heartbeat-grace-period.")
	fs.DurationVar(&c.Retention, "expired-session-retention", c.Retention,
		"How long an expired session is shown before it is forgotten.")
}

// settingNames say how the settings of a class are called where they were made.
type settingNames struct {
	heartbeatInterval, suspectAfter, grace, renewInterval, leaseDuration, retention string
}

func (c *Class) names(byFlags bool) settingNames {
	if byFlags {
		return settingNames{
			heartbeatInterval: "--heartbeat-interval", suspectAfter: "--heartbeat-suspect-after", grace: "--heartbeat-grace-period",
			renewInterval: "--lease-renew-interval", leaseDuration: "--lease-duration", retention: "--expired-session-retention",
		}
	}
	of := func(field string) string { return fmt.Sprintf("--classes: %s of %q", field, c.Name) }
	return settingNames{
		heartbeatInterval: of("heartbeatInterval"), suspectAfter: of("suspectAfter"), grace: of("grace"),
		renewInterval: of("renewInterval"), leaseDuration: of("leaseDuration"), retention: of("retention"),
	}
}

// validate returns every problem of the class; byFlags says that it was set by flags of its own.
func (c *Class) validate(byFlags bool) []error {
	var problems []error
	wrong := func(format string, arguments ...any) { problems = append(problems, fmt.Errorf(format, arguments...)) }
	for _, part := range []struct{ what, name string }{{"name", c.Name}, {"namespace", c.Namespace}} {
		if why := validation.IsDNS1123Label(part.name); len(why) > 0 {
			wrong("class %q: %s %q: %s", c.Name, part.what, part.name, strings.Join(why, "; "))
		}
	}
	names := c.names(byFlags)
	problems = append(problems, c.tooLong(names)...)
	if c.HeartbeatInterval < minInterval {
		wrong("%s is %v, must be %v or more", names.heartbeatInterval, c.HeartbeatInterval, minInterval)
	}
	if c.RenewInterval < minInterval {
		wrong("%s is %v, must be %v or more", names.renewInterval, c.RenewInterval, minInterval)
	}
	if c.SuspectAfter < 1 || c.SuspectAfter > maxMissed {
		wrong("%s is %d, must be 1 to %d", names.suspectAfter, c.SuspectAfter, maxMissed)
	}
	if c.Grace <= c.suspicion() {
		wrong("%s is %v, must be longer than the %v after which a holder is suspect that has missed %d beats, one every %v",
			names.grace, c.Grace, c.suspicion(), c.SuspectAfter, c.HeartbeatInterval)
	}
	if c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0 {
		wrong("%s is %v, must be whole seconds and one at least", names.leaseDuration, c.LeaseDuration)
	}
	if c.LeaseDuration < c.Grace {
		wrong("%s is %v, must not be shorter than the %v of %s: a Lease would lapse while the session of its holder lives",
			names.leaseDuration, c.LeaseDuration, c.Grace, names.grace)
	}
	if c.RenewInterval >= c.LeaseDuration {
		wrong("%s is %v, must be shorter than the %v of %s", names.renewInterval, c.RenewInterval, c.LeaseDuration, names.leaseDuration)
	}
	if c.Retention < 0 {
		wrong("%s is %v, must not be negative", names.retention, c.Retention)
	}
	return problems
}

func (c *Class) tooLong(names settingNames) []error {
	var problems []error
	for _, limited := range []struct {
		name string
		time time.Duration
	}{
		{names.heartbeatInterval, c.HeartbeatInterval}, {names.grace, c.Grace}, {names.renewInterval, c.RenewInterval},
		{names.leaseDuration, c.LeaseDuration}, {names.retention, c.Retention},
	} {
		if limited.time > maxTime {
			problems = append(problems, fmt.Errorf("%s is %v, must be a year at most", limited.name, limited.time))
		}
	}
	return problems
}

// suspicion is the silence that makes suspect: half an interval after the last of the missed beats was due, so that one that
// is late makes nobody suspect.
func (c *Class) suspicion() time.Duration {
	return time.Duration(c.SuspectAfter)*c.HeartbeatInterval + c.HeartbeatInterval/2
}

// shortestGrace is that of the holders who are given up first.
func shortestGrace(classes []Class) time.Duration {
	shortest := classes[0].Grace
	for i := range classes {
		shortest = min(shortest, classes[i].Grace)
	}
	return shortest
}

// rule is the class as the keeper takes it.
func (c *Class) rule(writes *WriteConfig) sessioncontroller.Class {
	return sessioncontroller.Class{
		Namespace: c.Namespace, Unowned: !c.OwnedByNode,
		Session: session.Class{
			Name: c.Name, Interval: c.HeartbeatInterval, Suspect: c.suspicion(), TTL: c.Grace, Retention: c.Retention,
		},
		Writes: writes.policy(c),
	}
}
