package nodehealth

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// ExcludeDisruptionLabel excludes a Node from the count of its zone. The node-lifecycle controller
// uses the same label.
const ExcludeDisruptionLabel = "node.kubernetes.io/exclude-disruption"

// Rules are the settings of the decisions.
type Rules struct {
	// GracePeriod is the silence after which a Node is marked Unknown.
	GracePeriod time.Duration
	// StartupGracePeriod replaces GracePeriod for a Node without a Ready condition. It counts from
	// when the Node was first seen.
	StartupGracePeriod time.Duration
	// LeastSilence is how long a replica that gained a shard marks none of its Nodes: SessionGrace
	// at least. By then a living agent that lost its server without a word beats here, or a Lease
	// is written.
	LeastSilence time.Duration
	// SessionGrace is the silence after which a session expires. A Node whose living agent says
	// that the kubelet is silent is marked Unknown once the kubelet's own signs are as old.
	SessionGrace time.Duration
	// UnreadyStart is how long a Node that was never ready gets no NoExecute taint: upstream looks
	// at Nodes that rarely, and a kubelet needs a moment to become ready.
	UnreadyStart time.Duration
	// ExcludeLabels exclude the Nodes that have one of them from the count of their zone.
	ExcludeLabels []string
	// UnhealthyZoneThreshold is the share of nodes, of three at least, from which a zone is
	// partially disrupted.
	UnhealthyZoneThreshold float64
	// LargeZoneSize is the number of nodes beyond which a partially disrupted zone still gets
	// taints.
	LargeZoneSize int
	// NormalRate, PartialRate and FullRate are NoExecute taints per second and zone, by the state
	// of the zone.
	NormalRate, PartialRate, FullRate float64
	// MarkPodsOfUnreadyNodes marks the ready Pods of a Node whose kubelet reports Ready=False, once
	// in each process. Upstream leaves them to the kubelet, which lives.
	MarkPodsOfUnreadyNodes bool
}

// DefaultRules returns the defaults of kube-controller-manager v1.37, for nodes that beat every
// five seconds.
func DefaultRules() Rules {
	return Rules{
		GracePeriod:            50 * time.Second,
		StartupGracePeriod:     time.Minute,
		LeastSilence:           20 * time.Second,
		SessionGrace:           20 * time.Second,
		UnreadyStart:           5 * time.Second,
		ExcludeLabels:          []string{ExcludeDisruptionLabel},
		UnhealthyZoneThreshold: 0.55,
		LargeZoneSize:          50,
		NormalRate:             0.1,
		PartialRate:            0.01,
		FullRate:               0.1,
	}
}

// Moment is one point in time: decisions use Instant, objects get Wall.
type Moment struct {
	Instant monotonic.Instant
	Wall    time.Time
}

// Authority is what a pass may do.
type Authority struct {
	// MaxSteps is how many steps a plan may have. The next plan has the remaining ones.
	MaxSteps int
	// HoldsZones says that this replica holds the term of the zones, so it sets the NoExecute
	// taints of all Nodes.
	HoldsZones bool
}

// Plan is the result of a pass.
type Plan struct {
	// Steps are for different Nodes, the most urgent first.
	Steps []Step
	// SelfCheck is nil if none is due.
	SelfCheck *SelfCheck
	// Held is how many silent nodes are not marked Unknown, because something delays that.
	Held int
	// Zones are ordered by name. Replicas that see the same Nodes have the same Zones.
	Zones []Zone
	// Counts are the Nodes of the held shards by Health.
	Counts [Dead + 1]int
	// Dead are the Nodes of the held shards with Health Dead. Their ready Pods are to be marked
	// NotReady.
	Dead []*NodeState
	// NotReady are the Nodes of the held shards whose kubelet reports Ready=False, with
	// Rules.MarkPodsOfUnreadyNodes. Each ready Pod on them is to be marked NotReady once: the
	// kubelet may be unable to, and reports again if it is able.
	NotReady []*NodeState
}

// Plan decides for all nodes at once. It plans conditions, NoSchedule taints and labels for the
// Nodes of the held shards, and with Authority.HoldsZones the NoExecute taints of all Nodes. The
// returned ClusterState is for the next call.
func (r Rules) Plan(now Moment, cluster ClusterState, nodes []NodeState, authority Authority) (Plan, ClusterState) {
	p := pass{
		Rules: r, now: now, authority: authority, cluster: cluster.withoutOld(now.Instant, r.GracePeriod),
		zones: map[string]*Zone{},
	}
	for i := range nodes {
		p.cluster.served = max(p.cluster.served, nodes[i].signs.served(now.Instant))
	}
	if now.Instant.Sub(p.cluster.served) > r.GracePeriod/2 {
		p.cluster.servedSince = now.Instant
	}
	for i := range nodes {
		p.count(&nodes[i])
	}
	p.closeZones()
	p.collect()
	p.choose()
	p.plan.SelfCheck = p.cluster.selfCheck(now.Instant, p.silent, nodes)
	return p.plan, p.cluster
}

// pass is one call of Plan.
type pass struct {
	Rules
	now       Moment
	authority Authority
	cluster   ClusterState
	plan      Plan

	zones map[string]*Zone
	// silent are the Nodes to mark Unknown, drifted those whose taints or labels need a change.
	// Only a pass that may have steps has drifted Nodes.
	silent     []candidate
	drifted    []*NodeState
	candidates []candidate
}

// count adds a Node to its zone, and remembers it if it may need a step.
func (p *pass) count(s *NodeState) {
	z := p.zones[s.traits.zone]
	if z == nil {
		z = &Zone{Name: s.traits.zone}
		p.zones[s.traits.zone] = z
	}
	z.count(s)
	if s.taintedAt > 0 && !p.authority.HoldsZones {
		// The next leader of the zones continues at the rate of this one.
		p.cluster = p.cluster.withTaint(s.taintedAt, s.traits.zone)
	}
	silent := s.Ownership.Held && p.assess(s)
	if !silent && p.authority.MaxSteps > 0 && (s.Ownership.Held && s.traits.drifted || p.authority.HoldsZones && (s.traits.tainted || s.traits.noExecute != inSync)) {
		p.drifted = append(p.drifted, s)
	}
}

// assess takes the health of a Node of a held shard into account, and returns whether the Node is
// silent.
func (p *pass) assess(s *NodeState) (silent bool) {
	a := p.Assess(p.now.Instant, p.cluster, s)
	p.plan.Counts[a.Health]++
	switch a.Health {
	case Silent:
		p.silent = append(p.silent, candidate{kind: MarkUnknown, node: s, silence: a})
	case Dead:
		p.plan.Dead = append(p.plan.Dead, s)
	}
	if p.MarkPodsOfUnreadyNodes && s.traits.ready == corev1.ConditionFalse && a.Health != Dead {
		p.plan.NotReady = append(p.plan.NotReady, s)
	}
	return a.Health == Silent
}

// closeZones sets the states and rates of the zones. The rates are 0 while all zones are down.
func (p *pass) closeZones() {
	for _, z := range p.zones {
		z.State = p.stateOf(*z)
		p.plan.Zones = append(p.plan.Zones, *z)
	}
	slices.SortFunc(p.plan.Zones, func(a, b Zone) int { return cmp.Compare(a.Name, b.Name) })
	down := AllZonesDown(p.plan.Zones)
	for i := range p.plan.Zones {
		z := &p.plan.Zones[i]
		if !down {
			z.Rate = p.rateOf(*z)
		}
		p.zones[z.Name].Rate = z.Rate
	}
	p.cluster = p.cluster.withAllDown(p.now.Instant, down)
}

// collect finds the candidates among all Nodes.
func (p *pass) collect() {
	p.candidates = make([]candidate, 0, len(p.silent)+len(p.drifted))
	for _, c := range p.silent {
		// closeZones may have begun a grace period.
		switch a := p.Assess(p.now.Instant, p.cluster, c.node); {
		case a.Health != Silent:
		case a.Delay.Active():
			p.plan.Held++
		case !c.node.Busy:
			p.candidates = append(p.candidates, c)
		}
	}
	for _, s := range p.drifted {
		if !s.Busy && p.canChange(s) {
			change, _ := p.noExecuteChange(s)
			p.candidates = append(p.candidates, candidate{kind: noExecuteKind(change), node: s})
		}
	}
}

// canChange returns whether a step could change a Node now. It is cheap, because thousands of Nodes
// may wait for their zone's rate.
func (p *pass) canChange(s *NodeState) bool {
	switch {
	case s.Ownership.Held && s.traits.drifted:
		return true
	case !p.authority.HoldsZones:
		return false
	case p.cluster.allDown:
		return s.traits.tainted
	case s.traits.noExecute == addAtRate:
		return !p.starts(s) && p.rateAllows(s.traits.zone)
	}
	return s.traits.noExecute == changeNow
}

// starts returns whether a Node was never ready and was first observed a short time ago.
func (p *pass) starts(s *NodeState) bool {
	return !s.wasReady && p.now.Instant.Sub(s.signs.first) < p.UnreadyStart
}

// rateAllows returns whether a zone may get its next NoExecute taint now.
func (p *pass) rateAllows(zone string) bool {
	return p.cluster.limiters[zone].allows(p.now.Instant, p.zones[zone].Rate)
}

// noExecuteChange returns the change that the NoExecute taints of a Node need, and whether it uses
// the rate of the zone. It follows from the Node as it was written, and the write is guarded by the
// version of the Node. So no Delay holds up a taint.
func (p *pass) noExecuteChange(s *NodeState) (change taintChange, rateLimited bool) {
	switch {
	case !p.authority.HoldsZones:
		return taintChange{}, false
	case p.cluster.allDown:
		return removeNoExecuteTaints(s.Node), false
	}
	change, rateLimited = noExecuteTaints(s.Node, s.traits.ready)
	if rateLimited && p.starts(s) {
		return taintChange{}, false
	}
	return change, rateLimited
}

// choose makes steps of the most urgent candidates. A Node whose zone's rate is used up still gets
// its other changes.
func (p *pass) choose() {
	slices.SortFunc(p.candidates, func(a, b candidate) int {
		if a.kind != b.kind {
			return cmp.Compare(a.kind, b.kind)
		}
		return compareNodes(a.node, b.node)
	})
	for i := range p.candidates {
		if len(p.plan.Steps) == p.authority.MaxSteps {
			return
		}
		step := p.stepOf(&p.candidates[i])
		if step.RateLimited {
			p.cluster = p.cluster.withTaint(p.now.Instant, step.Zone)
		}
		if step.Conditions != nil || step.Taints != nil || step.Labels != nil {
			p.plan.Steps = append(p.plan.Steps, step)
		}
	}
}

func (p *pass) stepOf(c *candidate) Step {
	if c.kind == MarkUnknown {
		return c.markUnknown(p.now)
	}
	change, rateLimited := p.noExecuteChange(c.node)
	if rateLimited && !p.rateAllows(c.node.traits.zone) {
		change, rateLimited = taintChange{}, false
	}
	return syncTaints(p.now, c.node, change, rateLimited)
}
