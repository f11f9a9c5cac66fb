package leasesvc

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// maxEvictionRate is far above what a cluster can bear; a greater number is a typing error.
const maxEvictionRate = 1000

// NodeHealthConfig configures the loop node-health. A flag has the name that it has in
// kube-controller-manager, if any.
type NodeHealthConfig struct {
	// Rules.FirstBeat has no flag: it follows from the class "node".
	nodehealth.Rules
	// ConcurrentWrites is how many Nodes and pods are written at the same time.
	ConcurrentWrites int
}

func defaultNodeHealth() NodeHealthConfig {
	return NodeHealthConfig{Rules: nodehealth.DefaultRules(), ConcurrentWrites: 16}
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
