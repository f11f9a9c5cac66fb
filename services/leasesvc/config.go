package leasesvc

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/internal/settings"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

const (
	// NodeClass is the name of the class whose holders are Nodes.
	NodeClass = class.Node
	// WriteMirror is the write policy of kubelets: each Lease object is written once per renewal
	// interval.
	WriteMirror = class.WriteMirror
)

const (
	maxSessions = 10_000_000
	maxWriters  = 1024
	maxRate     = 10_000_000
	// maxShards is the limit of term.Candidate.
	maxShards = 4096
	// maxClasses is the number of values of session.ClassID.
	maxClasses = 256
	// maxEvictionRate is far above what a cluster can bear; a greater number is a typing error.
	maxEvictionRate = 1000
)

// Config configures the service. DefaultConfig sets every field that Validate requires.
type Config struct {
	// Classes are the classes of holders that have flags of their own: "node".
	Classes []class.Class
	// FurtherClasses are the classes of --classes.
	FurtherClasses []class.Class
	// Shards is the number of shards, 1 to 4096. Replicas with different numbers do not work at the
	// same time.
	Shards int
	// MaxSessions is how many sessions a replica keeps; further holders are rejected with
	// TOO_MANY_HOLDERS.
	MaxSessions int
	// MaxRegistrations is how many registrations per second a replica accepts, and the burst.
	MaxRegistrations int
	// MaxMessages is how many heartbeat messages per second one identity may send in calls and on
	// all its streams.
	MaxMessages int
	// MaxLeasesPerIdentity is how many leases of classes without an owner one identity may open at
	// a replica.
	MaxLeasesPerIdentity int
	// AgentServiceAccounts are ServiceAccounts, "namespace/name", whose tokens speak for the Node
	// that they are bound to.
	AgentServiceAccounts []string
	// TokenReviewInterval is the longest time between two reviews of the token of an open stream.
	TokenReviewInterval time.Duration
	// ConcurrentWrites is how many Lease objects a replica writes at the same time.
	ConcurrentWrites int
	// Writes applies to the Lease objects of all classes.
	Writes class.Writes
	// FillTime is how long lists and watches of leases do not name a shard after its term began
	// here, because live holders have yet to register. 0 is the longest interval of a class and the
	// time that an agent takes to find the new leader.
	FillTime time.Duration
	// WatchSilenceLimit is how long nothing may come from a watch of Kubernetes objects before it
	// is reopened; 0 means 90 s. It has no flag: kube-apiserver sends a bookmark about once a
	// minute, always.
	WatchSilenceLimit time.Duration
	// NodeHealth configures the loop node-health.
	NodeHealth NodeHealthConfig
	// TaintEviction configures the loop taint-eviction.
	TaintEviction TaintEvictionConfig
}

// DefaultConfig returns a configuration with the class "node": a beat every 5 s, a grace period of
// 20 s, and the Leases of upstream's kubelet, renewed every 10 s for 40 s. Node health has the
// defaults of upstream's kube-controller-manager.
func DefaultConfig() Config {
	return Config{
		Classes:          []class.Class{class.DefaultNode()},
		Shards:           64,
		MaxSessions:      200_000,
		MaxRegistrations: 5000,
		MaxMessages:      5000,
		ConcurrentWrites: 32,

		MaxLeasesPerIdentity: 1000,
		AgentServiceAccounts: []string{"trivet-system/trivet-agent"},
		TokenReviewInterval:  10 * time.Second,

		Writes:     class.DefaultWrites(),
		NodeHealth: NodeHealthConfig{Rules: nodehealth.DefaultRules(), ConcurrentWrites: 16},
	}
}

// RegisterFlags adds the flags of the service, with the values of c as defaults. The flags stay
// bound to c.Classes.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	for i := range c.Classes {
		if c.Classes[i].Name == NodeClass {
			registerClassFlags(fs, &c.Classes[i])
		}
	}
	fs.Var(classesFlag{classes: &c.FurtherClasses}, "classes",
		"Further classes of holders, a JSON list; in the configuration file a list like any other.")
	fs.IntVar(&c.Shards, "shards", c.Shards,
		"Number of shards, 1 to 4096. If replicas differ, those that agree with the oldest one work, and the remaining ones wait until it is gone.")
	fs.IntVar(&c.MaxSessions, "max-sessions", c.MaxSessions,
		"Number of sessions that this replica keeps over all its shards; further holders are rejected.")
	fs.IntVar(&c.MaxRegistrations, "max-registrations-per-second", c.MaxRegistrations,
		"Registrations per second that this replica accepts, and the burst. Excess holders are asked to retry and keep their sessions.")
	fs.IntVar(&c.MaxMessages, "max-messages-per-second", c.MaxMessages,
		"Heartbeat messages per second that one identity may send in calls and on all its streams. One that sends more is told to slow down, then rejected.")
	fs.IntVar(&c.MaxLeasesPerIdentity, "max-leases-per-identity", c.MaxLeasesPerIdentity,
		"Leases of classes without an owner that one identity may open at this replica; further holders are rejected.")
	fs.StringSliceVar(&c.AgentServiceAccounts, "agent-service-accounts", c.AgentServiceAccounts,
		"ServiceAccounts, namespace/name, whose tokens may beat for the node that they are bound to. Empty accepts no tokens for nodes.")
	fs.DurationVar(&c.TokenReviewInterval, "token-review-interval", c.TokenReviewInterval,
		"Longest time between two reviews of the token of an open heartbeat stream. Each review is a request to kube-apiserver.")
	fs.IntVar(&c.ConcurrentWrites, "concurrent-lease-writes", c.ConcurrentWrites,
		"Number of Lease objects that this replica writes at the same time.")
	registerWriteFlags(fs, &c.Writes)
	c.NodeHealth.registerFlags(fs)
	c.TaintEviction.registerFlags(fs)
}

func registerClassFlags(fs *pflag.FlagSet, c *class.Class) {
	fs.DurationVar(&c.HeartbeatInterval, "heartbeat-interval", c.HeartbeatInterval,
		"Time between two heartbeats that nodes are asked for.")
	fs.IntVar(&c.SuspectAfter, "heartbeat-suspect-after", c.SuspectAfter,
		"Number of missed heartbeats after which a node is suspect.")
	fs.DurationVar(&c.Grace, "heartbeat-grace-period", c.Grace,
		"Time after which the session of a node without heartbeats expires.")
	fs.DurationVar(&c.RenewInterval, "lease-renew-interval", c.RenewInterval,
		"Time between two writes of a node's Lease object.")
	fs.DurationVar(&c.LeaseDuration, "lease-duration", c.LeaseDuration,
		"Duration in a node's Lease object: whole seconds, at least --heartbeat-grace-period.")
	fs.DurationVar(&c.Retention, "expired-session-retention", c.Retention,
		"Time for which an expired session remains visible.")
}

func registerWriteFlags(fs *pflag.FlagSet, w *class.Writes) {
	fs.StringVar((*string)(&w.Policy), "write-policy", string(w.Policy),
		"When Lease objects are written. mirror: once per --lease-renew-interval, as kubelets do. relaxed: when an object's age reaches three fifths of its duration. on-change: when a holder expires or returns, and once per --lease-refresh-interval. Use on-change only with the loop node-health: kube-controller-manager's node-lifecycle controller would mark all nodes as unknown.")
	fs.DurationVar(&w.RefreshInterval, "lease-refresh-interval", w.RefreshInterval,
		"Time between two writes of an unchanged Lease object with --write-policy=on-change. Its duration is five thirds of that.")
}

// classesFlag is the pflag.Value of --classes.
type classesFlag struct{ classes *[]class.Class }

func (f classesFlag) Type() string { return settings.StructuredType }

func (f classesFlag) String() string {
	if f.classes == nil {
		return "[]" // pflag asks the zero value
	}
	return class.FormatList(*f.classes)
}

// Set replaces the whole list.
func (f classesFlag) Set(text string) error {
	classes, err := class.ParseList(text)
	if err != nil {
		return err
	}
	*f.classes = classes
	return nil
}

// Validate returns every problem of the configuration, each with its flag if it has one.
func (c *Config) Validate() []error {
	problems := c.validateClasses()
	for _, number := range []struct {
		flag         string
		value, limit int
	}{
		{"--shards", c.Shards, maxShards},
		{"--max-sessions", c.MaxSessions, maxSessions},
		{"--max-registrations-per-second", c.MaxRegistrations, maxRate},
		{"--max-messages-per-second", c.MaxMessages, maxRate},
		{"--max-leases-per-identity", c.MaxLeasesPerIdentity, maxSessions},
		{"--concurrent-lease-writes", c.ConcurrentWrites, maxWriters},
	} {
		if number.value < 1 || number.value > number.limit {
			problems = append(problems, fmt.Errorf("%s is %d, must be 1 to %d", number.flag, number.value, number.limit))
		}
	}
	return slices.Concat(problems, c.validateIdentities(), c.Writes.Validate(), c.TaintEviction.validate(), c.NodeHealth.validate())
}

func (c *Config) validateIdentities() []error {
	var problems []error
	for _, account := range c.AgentServiceAccounts {
		namespace, name, cut := strings.Cut(account, "/")
		if !cut || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			problems = append(problems, fmt.Errorf("--agent-service-accounts: %q, must be namespace/name", account))
		}
	}
	if c.TokenReviewInterval < time.Second || c.TokenReviewInterval > time.Hour {
		problems = append(problems, fmt.Errorf("--token-review-interval is %v, must be a second to an hour", c.TokenReviewInterval))
	}
	return problems
}

func (c *Config) validateClasses() []error {
	var problems []error
	classes := c.classes()
	if len(classes) == 0 || len(classes) > maxClasses {
		problems = append(problems, fmt.Errorf("there are %d classes of holders, must be 1 to %d", len(classes), maxClasses))
	}
	names, namespaces := map[string]bool{}, map[string]bool{}
	for i := range classes {
		each := &classes[i]
		problems = append(problems, each.Validate(i < len(c.Classes))...)
		if names[each.Name] || namespaces[each.Namespace] {
			problems = append(problems, fmt.Errorf("class %q in namespace %q: another class has the name or the namespace", each.Name, each.Namespace))
		}
		names[each.Name], namespaces[each.Namespace] = true, true
	}
	return problems
}

// classes returns all classes; the index of a class is its session.ClassID.
func (c *Config) classes() []class.Class { return slices.Concat(c.Classes, c.FurtherClasses) }

// warn logs a class without holders, and a write policy that lets upstream's node-lifecycle
// controller mark live nodes as unknown.
func (c *Config) warn(logger *slog.Logger, nodeHealth bool) {
	for _, each := range c.FurtherClasses {
		if each.HolderRule.Type == class.RuleNone {
			logger.Warn("the class has no holderRule, so each of its holders is refused, except with --insecure", "class", each.Name)
		}
	}
	if c.Writes.Policy == class.WriteOnChange && !nodeHealth {
		logger.Warn("with this write policy kube-controller-manager's node-lifecycle controller marks all nodes as unknown; "+
			"disable it and enable the loop node-health, or choose another --write-policy",
			"write_policy", c.Writes.Policy, "lease_refresh_interval", c.Writes.RefreshInterval)
	}
}

// NodeHealthConfig configures the loop node-health. A flag has the name that it has in
// kube-controller-manager, if any.
type NodeHealthConfig struct {
	// Rules are the settings of the decisions. FirstBeat and LeastSilence have no flags: New
	// derives them from the class "node".
	nodehealth.Rules
	// ConcurrentWrites is how many Nodes and pods are written at the same time.
	ConcurrentWrites int
}

func (c *NodeHealthConfig) registerFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.GracePeriod, "node-monitor-grace-period", c.GracePeriod,
		"Silence after which a Node is marked as unknown.")
	fs.DurationVar(&c.StartupGracePeriod, "node-startup-grace-period", c.StartupGracePeriod,
		"Silence after which a Node that has never reported its status is marked as unknown.")
	fs.Float64Var(&c.NormalRate, "node-eviction-rate", c.NormalRate,
		"Nodes of a healthy zone that get a NoExecute taint per second.")
	fs.Float64Var(&c.PartialRate, "secondary-node-eviction-rate", c.PartialRate,
		"Nodes of a large, partially disrupted zone that get a NoExecute taint per second. In small zones it is 0.")
	fs.Float64Var(&c.FullRate, "full-disruption-node-eviction-rate", c.FullRate,
		"Nodes of a zone without a ready node that get a NoExecute taint per second, while another zone has a ready node.")
	fs.IntVar(&c.LargeZoneSize, "large-cluster-size-threshold", c.LargeZoneSize,
		"Number of nodes above which a zone is large.")
	fs.Float64Var(&c.UnhealthyZoneThreshold, "unhealthy-zone-threshold", c.UnhealthyZoneThreshold,
		"Share of not ready nodes, at least three, from which a zone is partially disrupted.")
	fs.StringSliceVar(&c.ExcludeLabels, "disruption-exclude-labels", c.ExcludeLabels,
		"Labels that exclude Nodes from the counts of their zone.")
	fs.BoolVar(&c.MarkPodsOfUnreadyNodes, "mark-pods-of-unready-nodes", c.MarkPodsOfUnreadyNodes,
		"Mark the ready Pods of a Node whose kubelet reports Ready=False as not ready, once. Upstream leaves them to the kubelet, and nothing restores the Pods of a kubelet that does not report them again.")
	fs.IntVar(&c.ConcurrentWrites, "concurrent-node-writes", c.ConcurrentWrites,
		"Number of Nodes and pods that are written at the same time.")
}

func (c *NodeHealthConfig) validate() []error {
	var problems []error
	for flag, grace := range map[string]time.Duration{
		"--node-monitor-grace-period": c.GracePeriod, "--node-startup-grace-period": c.StartupGracePeriod,
	} {
		if grace < time.Second {
			problems = append(problems, fmt.Errorf("%s is %v, must be at least a second", flag, grace))
		}
	}
	for flag, rate := range map[string]float64{
		"--node-eviction-rate": c.NormalRate, "--secondary-node-eviction-rate": c.PartialRate,
		"--full-disruption-node-eviction-rate": c.FullRate,
	} {
		if !(rate >= 0 && rate <= maxEvictionRate) { // also true for NaN
			problems = append(problems, fmt.Errorf("%s is %v, must be 0 to %d", flag, rate, maxEvictionRate))
		}
	}
	if !(c.UnhealthyZoneThreshold > 0 && c.UnhealthyZoneThreshold <= 1) {
		problems = append(problems, fmt.Errorf("--unhealthy-zone-threshold is %v, must be above 0 and at most 1", c.UnhealthyZoneThreshold))
	}
	if c.LargeZoneSize < 0 {
		problems = append(problems, fmt.Errorf("--large-cluster-size-threshold is %d, must not be negative", c.LargeZoneSize))
	}
	for _, label := range c.ExcludeLabels {
		if failures := validation.IsQualifiedName(label); len(failures) > 0 {
			problems = append(problems, fmt.Errorf("--disruption-exclude-labels: %q: %s", label, strings.Join(failures, "; ")))
		}
	}
	if c.ConcurrentWrites < 1 || c.ConcurrentWrites > maxWriters {
		problems = append(problems, fmt.Errorf("--concurrent-node-writes is %d, must be 1 to %d", c.ConcurrentWrites, maxWriters))
	}
	return problems
}

// TaintEvictionConfig configures the loop taint-eviction.
type TaintEvictionConfig struct {
	// QPS is how many pods are evicted per second, 0 to 1000; 0 is no limit.
	QPS float64
}

func (c *TaintEvictionConfig) registerFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.QPS, "taint-eviction-qps", c.QPS,
		"Pods that are evicted per second because of the taints of their nodes, in the order in which they are due. 0 is no limit.")
}

func (c *TaintEvictionConfig) validate() []error {
	if !(c.QPS >= 0 && c.QPS <= maxEvictionRate) { // also true for NaN
		return []error{fmt.Errorf("--taint-eviction-qps is %v, must be 0 to %d", c.QPS, maxEvictionRate)}
	}
	return nil
}
