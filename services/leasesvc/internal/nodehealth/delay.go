package nodehealth

import (
	"math"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Delay is why something is not done yet: a silent node is not marked Unknown, or Pods that are due
// are not evicted. The zero Delay delays nothing.
type Delay struct {
	// Reason is a stable code. docs/reasons.md lists them.
	Reason string
	// Message is a clause for people; "" for GracePeriod.
	Message string
	// Since is when it began; 0 if that is not known.
	Since monotonic.Instant
	// Until is when it ends, or Open.
	Until monotonic.Instant
}

// Open is the end of a Delay that ends with an event.
const Open = monotonic.Instant(math.MaxInt64)

// Reasons of the delays of a mark, in the order of the table. There are no others.
const (
	// GracePeriod follows the last sign of life.
	GracePeriod = "GRACE_PERIOD"
	// TermYoung lasts from the begin of the term for Rules.LeastSilence: a living agent has found
	// this replica by then.
	TermYoung = "TERM_YOUNG"
	// APIServerUnreachable lasts while kube-apiserver does not answer or takes no writes of Leases,
	// so that kubelets cannot renew theirs either, and for as long afterwards. An answer that takes
	// long delays a verdict by as much.
	APIServerUnreachable = "APISERVER_UNREACHABLE"
	// APIServerDenied is the same while kube-apiserver refuses this replica.
	APIServerDenied = "APISERVER_DENIED"
	// NoZoneReady lasts for one grace period after all zones were down, as upstream's does.
	NoZoneReady = "NO_ZONE_READY"
)

// cacheNotSynced is the reason of evictions before the first pass of node health.
const cacheNotSynced = "CACHE_NOT_SYNCED"

// Active reports whether d delays anything.
func (d Delay) Active() bool { return d.Reason != "" }

// NotSyncedDelay returns the Delay of evictions before the first pass of node health.
func NotSyncedDelay() Delay {
	return Delay{Reason: cacheNotSynced, Message: "node health has not read the cluster yet", Until: Open}
}

// NoZoneReadyDelay returns the Delay of evictions while no zone has a ready node.
func NoZoneReadyDelay() Delay {
	return Delay{Reason: NoZoneReady, Message: "no zone has a ready node", Until: Open}
}

// delays is the table of what delays the mark of one Node. A Node is marked when all are over. A
// zero Delay does not apply. Two are of a kube-apiserver: while it is unusable, and afterwards.
type delays [5]Delay

// delays returns the table of a Node with its last sign of life.
func (r Rules) delays(c ClusterState, s *NodeState, g sign) delays {
	return delays{
		{Reason: GracePeriod, Since: g.heard, Until: g.until},
		{
			Reason: TermYoung, Message: "this replica leads the shard of the Node for a short time, within which a living agent finds it",
			Since: s.Ownership.HeldSince, Until: s.Ownership.HeldSince.Add(min(r.LeastSilence, r.graceOf(s))),
		},
		c.unusable,
		c.apiServerDelay(r.graceOf(s), r.SessionGrace, g.until),
		c.zonesDelay(r.graceOf(s)),
	}
}

// deadline returns the last of the ends that are known.
func (d *delays) deadline() (last monotonic.Instant) {
	for i := range d {
		if d[i].Until != Open {
			last = max(last, d[i].Until)
		}
	}
	return last
}

// deciding returns the Delay that ends last.
func (d *delays) deciding() Delay {
	last := 0
	for i := range d {
		if d[i].Until > d[last].Until {
			last = i
		}
	}
	return d[last]
}
