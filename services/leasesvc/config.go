package leasesvc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// NodeClass is the class of the holders that are Nodes.
const NodeClass = "node"

const (
	// minInterval keeps a mistyped interval from turning a fleet into a flood.
	minInterval = 100 * time.Millisecond
	maxSessions = 10_000_000
	maxWriters  = 1024
	// maxShards is what a candidate for terms takes.
	maxShards = 4096
)

// Class is the rule for one kind of holder. A holder of any class bears the name of a Node, which owns its Lease.
type Class struct {
	// Name is what holders call their class.
	Name string
	// Namespace is where the Leases of the class live; no two classes share one.
	Namespace string
	// HeartbeatInterval is the time between two beats that holders are asked for.
	HeartbeatInterval time.Duration
	// RenewInterval is the time between two writes of a Lease whose holder beats.
	RenewInterval time.Duration
	// LeaseDuration is how long a session lives without a beat, and what its Lease promises its readers.
	LeaseDuration time.Duration
	// Retention is how long an expired session is shown before it is forgotten.
	Retention time.Duration
}

// Config is what leasesvc can be told.
type Config struct {
	// Classes are the kinds of holders that are served. Flags change the class "node".
	Classes []Class
	// Shards is into how many shards holders are divided among the replicas, 1 to 4096. Replicas that say different numbers do
	// not work side by side.
	Shards int
	// MaxSessions is how many holders a replica keeps, over all its shards; further ones are told TOO_MANY_HOLDERS.
	MaxSessions int
	// ConcurrentWrites is how many Lease objects a replica writes at the same time, over all its shards.
	ConcurrentWrites int
	// NodeHealth is how Nodes are judged, where the loop node-health runs.
	NodeHealth NodeHealthConfig
}

// DefaultConfig has the one class "node" with the timing of upstream's kubelet, a renewal every 10 s of a Lease of 40 s, and
// judges Nodes as upstream's kube-controller-manager does.
func DefaultConfig() Config {
	return Config{
		Classes: []Class{{
			Name:              NodeClass,
			Namespace:         "kube-node-lease",
			HeartbeatInterval: 10 * time.Second,
			RenewInterval:     10 * time.Second,
			LeaseDuration:     40 * time.Second,
			Retention:         time.Hour,
		}},
		Shards:           64,
		MaxSessions:      200_000,
		ConcurrentWrites: 32,
		NodeHealth:       defaultNodeHealth(),
	}
}

// RegisterFlags adds leasesvc's own flags, with c's values as defaults. The flags stay bound to c.Classes.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	for i := range c.Classes {
		if class := &c.Classes[i]; class.Name == NodeClass {
			class.registerFlags(fs)
		}
	}
	fs.IntVar(&c.Shards, "shards", c.Shards,
		"Into how many shards holders are divided among the replicas, 1 to 4096. Where replicas differ, those that agree with the oldest work and the others wait until these are gone.")
	fs.IntVar(&c.MaxSessions, "max-sessions", c.MaxSessions,
		"How many holders this replica keeps, over all its shards; further ones are refused until others are forgotten.")
	fs.IntVar(&c.ConcurrentWrites, "concurrent-lease-writes", c.ConcurrentWrites,
		"How many Lease objects this replica writes at the same time, over all its shards.")
	c.NodeHealth.registerFlags(fs)
}

func (c *Class) registerFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.HeartbeatInterval, "heartbeat-interval", c.HeartbeatInterval,
		"Time between two heartbeats that nodes are asked for. A node is suspect after two and a half of them without one.")
	fs.DurationVar(&c.RenewInterval, "lease-renew-interval", c.RenewInterval,
		"Time between two writes of a node's Lease object.")
	fs.DurationVar(&c.LeaseDuration, "lease-duration", c.LeaseDuration,
		"How long a node's session lives without a heartbeat, and the duration in its Lease object; whole seconds.")
	fs.DurationVar(&c.Retention, "expired-session-retention", c.Retention,
		"How long an expired session is shown before it is forgotten.")
}

// Validate returns every problem of the configuration, each naming its flag where there is one.
func (c *Config) Validate() []error {
	var problems []error
	if len(c.Classes) == 0 || len(c.Classes) > 256 {
		problems = append(problems, fmt.Errorf("there are %d classes of holders, must be 1 to 256", len(c.Classes)))
	}
	names, namespaces := map[string]bool{}, map[string]bool{}
	for i := range c.Classes {
		class := &c.Classes[i]
		problems = append(problems, class.validate()...)
		if names[class.Name] || namespaces[class.Namespace] {
			problems = append(problems, fmt.Errorf("class %q in namespace %q: name and namespace must be its own", class.Name, class.Namespace))
		}
		names[class.Name], namespaces[class.Namespace] = true, true
	}
	if c.Shards < 1 || c.Shards > maxShards {
		problems = append(problems, fmt.Errorf("--shards is %d, must be 1 to %d", c.Shards, maxShards))
	}
	if c.MaxSessions < 1 || c.MaxSessions > maxSessions {
		problems = append(problems, fmt.Errorf("--max-sessions is %d, must be 1 to %d", c.MaxSessions, maxSessions))
	}
	if c.ConcurrentWrites < 1 || c.ConcurrentWrites > maxWriters {
		problems = append(problems, fmt.Errorf("--concurrent-lease-writes is %d, must be 1 to %d", c.ConcurrentWrites, maxWriters))
	}
	return append(problems, c.NodeHealth.validate()...)
}

func (c *Class) validate() []error {
	var problems []error
	for what, name := range map[string]string{"name": c.Name, "namespace": c.Namespace} {
		if why := validation.IsDNS1123Label(name); len(why) > 0 {
			problems = append(problems, fmt.Errorf("class %q: %s %q: %s", c.Name, what, name, strings.Join(why, "; ")))
		}
	}
	if c.HeartbeatInterval < minInterval {
		problems = append(problems, fmt.Errorf("--heartbeat-interval is %v, must be %v or more", c.HeartbeatInterval, minInterval))
	}
	if c.RenewInterval < minInterval {
		problems = append(problems, fmt.Errorf("--lease-renew-interval is %v, must be %v or more", c.RenewInterval, minInterval))
	}
	if c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0 {
		problems = append(problems, fmt.Errorf("--lease-duration is %v, must be whole seconds and one at least", c.LeaseDuration))
	}
	if c.LeaseDuration <= suspectAfter(c.HeartbeatInterval) {
		problems = append(problems, fmt.Errorf("--lease-duration is %v, must be longer than the %v after which a node is suspect at --heartbeat-interval=%v",
			c.LeaseDuration, suspectAfter(c.HeartbeatInterval), c.HeartbeatInterval))
	}
	if c.RenewInterval >= c.LeaseDuration {
		problems = append(problems, fmt.Errorf("--lease-renew-interval is %v, must be shorter than --lease-duration=%v", c.RenewInterval, c.LeaseDuration))
	}
	if c.Retention < 0 {
		problems = append(problems, errors.New("--expired-session-retention must not be negative"))
	}
	return problems
}

// suspectAfter is the silence in which two beats were missed: half an interval after the second was due, so that one beat that
// was lost makes nobody suspect, however late the next.
func suspectAfter(interval time.Duration) time.Duration { return 2*interval + interval/2 }

// rules are the classes as the keeper takes them.
func (c *Config) rules() []keeper.Class {
	rules := make([]keeper.Class, 0, len(c.Classes))
	for _, class := range c.Classes {
		rules = append(rules, keeper.Class{
			Namespace: class.Namespace,
			Session: session.Class{
				Name: class.Name, Interval: class.HeartbeatInterval, Suspect: suspectAfter(class.HeartbeatInterval),
				TTL: class.LeaseDuration, Retention: class.Retention,
			},
			Writes: writeback.Policy{Renew: class.RenewInterval, Duration: class.LeaseDuration},
		})
	}
	return rules
}
