package leasesvc

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// maxEvictionRate is far beyond what any cluster could bear; more is a mistyped number.
const maxEvictionRate = 1000

// NodeHealthConfig is what the loop node-health can be told. Flags have the names of kube-controller-manager's, where it has one.
type NodeHealthConfig struct {
	// GracePeriod is the silence after which a Node is declared unknown.
	GracePeriod time.Duration
	// StartupGracePeriod is the same for a Node that never reported.
	StartupGracePeriod time.Duration
	// EvictionRate is how many nodes of a zone get a NoExecute taint per second.
	EvictionRate float64
	// SecondaryEvictionRate is that of large zones that are partially disrupted; small ones get none.
	SecondaryEvictionRate float64
	// FullDisruptionEvictionRate is that of zones without a ready node, while other zones have some.
	FullDisruptionEvictionRate float64
	// LargeZone is the number of nodes beyond which a zone is large.
	LargeZone int
	// UnhealthyZoneThreshold is the share of not ready nodes from which a zone is partially disrupted.
	UnhealthyZoneThreshold float64
	// ExcludeLabels keep the Nodes that have one of them out of the count of their zone.
	ExcludeLabels []string
	// ConcurrentWrites is how many Nodes and pods are written at the same time.
	ConcurrentWrites int
}

// defaultNodeHealth is what kube-controller-manager does.
func defaultNodeHealth() NodeHealthConfig {
	r := nodehealth.DefaultRules()
	return NodeHealthConfig{
		GracePeriod: r.GracePeriod, StartupGracePeriod: r.StartupGracePeriod,
		EvictionRate: r.NormalRate, SecondaryEvictionRate: r.PartialRate, FullDisruptionEvictionRate: r.FullRate,
		LargeZone: r.LargeZoneSize, UnhealthyZoneThreshold: r.UnhealthyZoneThreshold, ExcludeLabels: r.ExcludeLabels, ConcurrentWrites: 16,
	}
}

func (c *NodeHealthConfig) rules() nodehealth.Rules {
	return nodehealth.Rules{
		GracePeriod: c.GracePeriod, StartupGracePeriod: c.StartupGracePeriod,
		NormalRate: c.EvictionRate, PartialRate: c.SecondaryEvictionRate, FullRate: c.FullDisruptionEvictionRate,
		LargeZoneSize: c.LargeZone, UnhealthyZoneThreshold: c.UnhealthyZoneThreshold, ExcludeLabels: c.ExcludeLabels,
	}
}

func (c *NodeHealthConfig) registerFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.GracePeriod, "node-monitor-grace-period", c.GracePeriod,
		"Silence after which a Node is declared unknown.")
	fs.DurationVar(&c.StartupGracePeriod, "node-startup-grace-period", c.StartupGracePeriod,
		"Silence after which a Node that never reported is declared unknown.")
	fs.Float64Var(&c.EvictionRate, "node-eviction-rate", c.EvictionRate,
		"How many nodes of a zone get a NoExecute taint per second.")
	fs.Float64Var(&c.SecondaryEvictionRate, "secondary-node-eviction-rate", c.SecondaryEvictionRate,
		"The same for large zones that are partially disrupted; small ones get none.")
	fs.Float64Var(&c.FullDisruptionEvictionRate, "full-disruption-node-eviction-rate", c.FullDisruptionEvictionRate,
		"The same for zones without a ready node, while other zones have some.")
	fs.IntVar(&c.LargeZone, "large-cluster-size-threshold", c.LargeZone,
		"Number of nodes beyond which a zone is large.")
	fs.Float64Var(&c.UnhealthyZoneThreshold, "unhealthy-zone-threshold", c.UnhealthyZoneThreshold,
		"Share of not ready nodes, of three at least, from which a zone is partially disrupted.")
	fs.StringSliceVar(&c.ExcludeLabels, "disruption-exclude-labels", c.ExcludeLabels,
		"Labels that keep Nodes out of the count of their zone.")
	fs.IntVar(&c.ConcurrentWrites, "concurrent-node-writes", c.ConcurrentWrites,
		"How many Nodes and pods are written at the same time.")
}

func (c *NodeHealthConfig) validate() []error {
	var problems []error
	for flag, grace := range map[string]time.Duration{
		"--node-monitor-grace-period": c.GracePeriod, "--node-startup-grace-period": c.StartupGracePeriod,
	} {
		if grace < time.Second {
			problems = append(problems, fmt.Errorf("%s is %v, must be a second at least", flag, grace))
		}
	}
	for flag, rate := range map[string]float64{
		"--node-eviction-rate": c.EvictionRate, "--secondary-node-eviction-rate": c.SecondaryEvictionRate,
		"--full-disruption-node-eviction-rate": c.FullDisruptionEvictionRate,
	} {
		if !(rate >= 0 && rate <= maxEvictionRate) { // no number is neither
			problems = append(problems, fmt.Errorf("%s is %v, must be 0 to %d", flag, rate, maxEvictionRate))
		}
	}
	if !(c.UnhealthyZoneThreshold > 0 && c.UnhealthyZoneThreshold <= 1) {
		problems = append(problems, fmt.Errorf("--unhealthy-zone-threshold is %v, must be above 0 and at most 1", c.UnhealthyZoneThreshold))
	}
	if c.LargeZone < 0 {
		problems = append(problems, fmt.Errorf("--large-cluster-size-threshold is %d, must not be negative", c.LargeZone))
	}
	for _, label := range c.ExcludeLabels {
		if why := validation.IsQualifiedName(label); len(why) > 0 {
			problems = append(problems, fmt.Errorf("--disruption-exclude-labels: %q: %s", label, strings.Join(why, "; ")))
		}
	}
	if c.ConcurrentWrites < 1 || c.ConcurrentWrites > maxWriters {
		problems = append(problems, fmt.Errorf("--concurrent-node-writes is %d, must be 1 to %d", c.ConcurrentWrites, maxWriters))
	}
	return problems
}
