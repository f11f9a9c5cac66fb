package leasesvc

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	maxSessions = 10_000_000
	maxWriters  = 1024
	maxRate     = 10_000_000
	// maxShards is what a candidate for terms takes.
	maxShards = 4096
	// maxClasses is how many a session can be numbered by.
	maxClasses = 256
)

// Config is what leasesvc can be told.
type Config struct {
	// Classes are kinds of holders that are served. Flags change the class "node".
	Classes []Class
	// FurtherClasses are served as well; --classes sets them.
	FurtherClasses []Class
	// Shards is into how many shards holders are divided among the replicas, 1 to 4096. Replicas that say different numbers do
	// not work side by side.
	Shards int
	// MaxSessions is how many holders a replica keeps, over all its shards; further ones are told TOO_MANY_HOLDERS.
	MaxSessions int
	// MaxIntroductions is how many holders a second are taken in over streams, and how many at once; the others are asked to
	// come again, and keep their sessions meanwhile.
	MaxIntroductions int
	// MaxMessages is how many messages a second one client certificate may send, on all its streams.
	MaxMessages int
	// ConcurrentWrites is how many Lease objects a replica writes at the same time, over all its shards.
	ConcurrentWrites int
	// Writes is how the Lease objects of all classes are written.
	Writes WriteConfig
	// NodeHealth is how Nodes are judged, where the loop node-health runs.
	NodeHealth NodeHealthConfig
	// TaintEviction is how pods are evicted, where the loop taint-eviction runs.
	TaintEviction TaintEvictionConfig
}

// DefaultConfig has the one class "node", whose holders beat every 5 s and live 20 s without, with the Leases of upstream's
// kubelet, renewed every 10 s for 40 s. It judges Nodes as upstream's kube-controller-manager does.
func DefaultConfig() Config {
	return Config{
		Classes:          []Class{defaultNodeClass()},
		Shards:           64,
		MaxSessions:      200_000,
		MaxIntroductions: 5000,
		MaxMessages:      5000,
		ConcurrentWrites: 32,
		Writes:           defaultWrites(),
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
	fs.Var(classFlag{classes: &c.FurtherClasses}, "classes",
		"Further classes of holders, a JSON list; in the configuration file a list like any other.")
	fs.IntVar(&c.Shards, "shards", c.Shards,
		"Into how many shards holders are divided among the replicas, 1 to 4096. Where replicas differ, those that agree with the oldest work and the others wait until these are gone.")
	fs.IntVar(&c.MaxSessions, "max-sessions", c.MaxSessions,
		"How many holders this replica keeps, over all its shards; further ones are refused until others are forgotten.")
	fs.IntVar(&c.MaxIntroductions, "max-introductions-per-second", c.MaxIntroductions,
		"How many holders this replica takes in over streams in a second, and at once; the others are asked to come again and keep their sessions meanwhile.")
	fs.IntVar(&c.MaxMessages, "max-messages-per-second", c.MaxMessages,
		"How many heartbeat messages one client certificate may send in a second, on all its streams; whoever goes on is told to slow down, then sent away.")
	fs.IntVar(&c.ConcurrentWrites, "concurrent-lease-writes", c.ConcurrentWrites,
		"How many Lease objects this replica writes at the same time, over all its shards.")
	c.Writes.registerFlags(fs)
	c.NodeHealth.registerFlags(fs)
	c.TaintEviction.registerFlags(fs)
}

// Validate returns every problem of the configuration, each naming its flag where there is one.
func (c *Config) Validate() []error {
	problems := c.validateClasses()
	if c.Shards < 1 || c.Shards > maxShards {
		problems = append(problems, fmt.Errorf("--shards is %d, must be 1 to %d", c.Shards, maxShards))
	}
	if c.MaxSessions < 1 || c.MaxSessions > maxSessions {
		problems = append(problems, fmt.Errorf("--max-sessions is %d, must be 1 to %d", c.MaxSessions, maxSessions))
	}
	if c.MaxIntroductions < 1 || c.MaxIntroductions > maxRate {
		problems = append(problems, fmt.Errorf("--max-introductions-per-second is %d, must be 1 to %d", c.MaxIntroductions, maxRate))
	}
	if c.MaxMessages < 1 || c.MaxMessages > maxRate {
		problems = append(problems, fmt.Errorf("--max-messages-per-second is %d, must be 1 to %d", c.MaxMessages, maxRate))
	}
	if c.ConcurrentWrites < 1 || c.ConcurrentWrites > maxWriters {
		problems = append(problems, fmt.Errorf("--concurrent-lease-writes is %d, must be 1 to %d", c.ConcurrentWrites, maxWriters))
	}
	problems = append(problems, c.Writes.validate()...)
	problems = append(problems, c.TaintEviction.validate()...)
	return append(problems, c.NodeHealth.validate()...)
}

func (c *Config) validateClasses() []error {
	var problems []error
	classes := c.classes()
	if len(classes) == 0 || len(classes) > maxClasses {
		problems = append(problems, fmt.Errorf("there are %d classes of holders, must be 1 to %d", len(classes), maxClasses))
	}
	names, namespaces := map[string]bool{}, map[string]bool{}
	for i := range classes {
		class := &classes[i]
		problems = append(problems, class.validate(i < len(c.Classes))...)
		if names[class.Name] || namespaces[class.Namespace] {
			problems = append(problems, fmt.Errorf("class %q in namespace %q: name and namespace must be its own", class.Name, class.Namespace))
		}
		names[class.Name], namespaces[class.Namespace] = true, true
	}
	return problems
}

// classes are all kinds of holders that are served; session.ClassID numbers them by their place.
func (c *Config) classes() []Class { return slices.Concat(c.Classes, c.FurtherClasses) }

// rules are the classes as the keeper takes them.
func (c *Config) rules() []sessioncontroller.Class {
	classes := c.classes()
	rules := make([]sessioncontroller.Class, 0, len(classes))
	for i := range classes {
		rules = append(rules, classes[i].rule(&c.Writes))
	}
	return rules
}
