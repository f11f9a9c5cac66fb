package nodehealth

import (
	"fmt"
	"maps"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// minOutage is how long kube-apiserver must be unreachable before all nodes get a new grace period.
// It is shorter than the duration of any node Lease.
const minOutage = 5 * time.Second

const (
	// promptAnswer bounds the answers that extend no grace period.
	promptAnswer = time.Second
	// unansweredAfter is how long a self-check may run before no Node is marked Unknown without it.
	unansweredAfter = 3 * time.Second
)

// ClusterState is what one pass hands to the next one. The zero ClusterState has passed no
// self-check, so no Node is marked Unknown before the first one. Its methods return a new
// ClusterState.
type ClusterState struct {
	// graceStart is the moment before which silence does not count.
	graceStart monotonic.Instant
	// recovered is when the last outage ended. recurring says that the one before it had ended a
	// short time before.
	recovered monotonic.Instant
	recurring bool
	// allDown says that every zone was fully disrupted in the last pass.
	allDown bool
	// limiters are by zone. A zone without Nodes keeps its limiter.
	limiters map[string]limiter
	// checked is when the last passed self-check began. hasChecked says that there was one.
	checked    monotonic.Instant
	hasChecked bool
	late       period
	outage     period
	stale      period
	// unanswered is on while a self-check has no answer for longer than a prompt one takes.
	unanswered period
	// failure is of the last self-check that failed, while outage is on.
	failure CheckFailure
	// slow is the slowest self-check of the last grace period.
	slow slowCheck
	// receiver is the doubt about the path on which beats arrive.
	receiver receiverDoubt
	fewHeard fewHeard
	renewals renewals
	// mostSilent says that most Nodes of the held shards were silent in this pass.
	mostSilent bool
	refusals   refusals
	// newest is the newest Lease that was read and is newer than the cache.
	newest Sample
}

// period is an open period of time.
type period struct {
	on    bool
	since monotonic.Instant
}

// slowCheck is a self-check that kube-apiserver answered slowly.
type slowCheck struct {
	took time.Duration
	at   monotonic.Instant
}

func (p period) begun(now monotonic.Instant) period {
	if p.on {
		return p
	}
	return period{on: true, since: now}
}

// Cause is why the process is uncertain.
type Cause string

// Causes of an Uncertainty.
const (
	// Unchecked: no self-check has passed yet.
	Unchecked Cause = "unchecked"
	// Unreachable: kube-apiserver does not answer, or takes no writes of Leases, so kubelets cannot
	// renew theirs either.
	Unreachable Cause = "apiserver-unreachable"
	// Denied: kube-apiserver refuses to show Leases to this replica, or to take its own.
	Denied Cause = "apiserver-denied"
	// Stale: a Lease is newer than in the cache.
	Stale Cause = "stale-cache"
	// Late: the process did not run for a while.
	Late Cause = "late"
)

// Uncertainty is why no Node is marked Unknown at the moment, and since when.
type Uncertainty struct {
	Cause  Cause
	Since  monotonic.Instant
	Detail string
}

// String describes the uncertainty without its time.
func (b Uncertainty) String() string {
	text := map[Cause]string{
		Unchecked:   "no self-check has passed since the start",
		Unreachable: "kube-apiserver does not answer or takes no Leases, so kubelets cannot renew theirs either",
		Stale:       "the cache of Leases is behind",
		Late:        "the process did not run for a while",
		Denied:      "kube-apiserver refuses to show Leases to this replica, or to take its own: the replica needs another role, or an admission webhook refuses Leases",
	}[b.Cause]
	if b.Detail != "" {
		text += ": " + b.Detail
	}
	return text
}

// Uncertain returns whether and why no Node may be marked Unknown.
func (c ClusterState) Uncertain() (Uncertainty, bool) {
	switch {
	case c.outage.on && c.failure.Denied:
		return Uncertainty{Cause: Denied, Since: c.outage.since, Detail: c.failure.Detail}, true
	case c.outage.on:
		return Uncertainty{Cause: Unreachable, Since: c.outage.since, Detail: c.failure.Detail}, true
	case c.unanswered.on:
		return Uncertainty{Cause: Unreachable, Since: c.unanswered.since, Detail: "no answer yet"}, true
	case c.stale.on:
		detail := fmt.Sprintf("the Lease of node %q has reached version %s", c.newest.Node, c.newest.LeaseVersion)
		return Uncertainty{Cause: Stale, Since: c.stale.since, Detail: detail}, true
	case c.late.on:
		return Uncertainty{Cause: Late, Since: c.late.since}, true
	case !c.hasChecked:
		return Uncertainty{Cause: Unchecked}, true
	}
	return Uncertainty{}, false
}

// Delayed notes that the process did not run for a while, up to now.
func (c ClusterState) Delayed(now monotonic.Instant) ClusterState {
	c.late = period{on: true, since: now}
	return c
}

// Refused notes that this replica refused connections or holders for lack of capacity. Among them
// may be living Nodes that this replica does not hear. They try again within a time.
func (c ClusterState) Refused(now monotonic.Instant, returnWithin time.Duration) ClusterState {
	c.refusals = c.refusals.next(now, returnWithin)
	return c
}

// CheckPassed notes the answers of a self-check that began at started. newer are Leases that are
// newer than in the cache. With one of them the check only ends the outage. After a slow answer the
// grace periods are as much longer as it was slow.
func (c ClusterState) CheckPassed(started, now monotonic.Instant, newer []Sample) ClusterState {
	if c.outage.on && now.Sub(c.outage.since) >= minOutage {
		c.recurring, c.recovered = c.recovered > 0, now
	}
	c.outage, c.unanswered, c.failure = period{}, period{}, CheckFailure{}
	if took := now.Sub(started); took >= promptAnswer && took >= c.slow.took {
		c.slow = slowCheck{took: took, at: now}
	}
	for _, sample := range newer {
		c = c.CacheBehind(now, sample)
	}
	if len(newer) > 0 {
		return c
	}
	if started >= c.late.since {
		c.late = period{}
	}
	if started >= c.stale.since {
		c.stale, c.newest = period{}, Sample{}
	}
	c.checked, c.hasChecked = max(c.checked, started), true
	return c
}

// CheckFailure is why a self-check failed. Detail is a stable text.
type CheckFailure struct {
	// Denied says that kube-apiserver answered and refused.
	Denied bool
	Detail string
}

// CheckFailed notes that kube-apiserver gave no answer to a self-check, or refused it. The outage
// counts from the last self-check that passed.
func (c ClusterState) CheckFailed(now monotonic.Instant, failure CheckFailure) ClusterState {
	if c.hasChecked {
		now = min(now, c.checked)
	}
	c.outage, c.unanswered, c.failure = c.outage.begun(now), period{}, failure
	return c
}

// CheckRuns notes that a self-check that began at started has no answer yet. Nodes wait for it if
// it is not prompt.
func (c ClusterState) CheckRuns(started, now monotonic.Instant) ClusterState {
	if now.Sub(started) >= unansweredAfter {
		c.unanswered = c.unanswered.begun(started)
	}
	return c
}

// silenceStart returns the moment before which silence does not count; 0 if there is none. After an
// outage every node gets a new grace period: kubelets could not renew Leases either. After an
// outage that recurs it is half a grace period, which is more than two renewals: otherwise short
// outages in a row would forbid every verdict.
func (c ClusterState) silenceStart(grace time.Duration) monotonic.Instant {
	if c.recurring {
		return max(c.graceStart, c.recovered.Add(-grace/2))
	}
	return max(c.graceStart, c.recovered)
}

// withoutOldRecovery forgets an outage that ended two grace periods ago: the next one does not
// count as recurring.
func (c ClusterState) withoutOldRecovery(now monotonic.Instant, grace time.Duration) ClusterState {
	if !c.outage.on && now.Sub(c.recovered) > 2*grace {
		c.recovered, c.recurring = 0, false
	}
	return c
}

// withoutOldSlowness forgets a slow answer that is older than a grace period: no silence began
// before it.
func (c ClusterState) withoutOldSlowness(now monotonic.Instant, grace time.Duration) ClusterState {
	if c.slow.took > 0 && now.Sub(c.slow.at) > grace {
		c.slow = slowCheck{}
	}
	return c
}

// CacheBehind notes a Lease that is newer than in the cache. Until the cache has it, no other Lease
// in the cache is trusted.
func (c ClusterState) CacheBehind(now monotonic.Instant, live Sample) ClusterState {
	c.stale = c.stale.begun(now)
	if Newer(live.LeaseVersion, c.newest.LeaseVersion) {
		c.newest = live
	}
	return c
}

// withoutStale ends Stale if the cache has the newest Lease, or if its Node does not exist.
func (c ClusterState) withoutStale(nodes []NodeState) ClusterState {
	if !c.stale.on {
		return c
	}
	for i := range nodes {
		s := &nodes[i]
		if s.Node.Name == c.newest.Node && Newer(c.newest.LeaseVersion, s.LeaseVersion()) {
			return c
		}
	}
	c.stale, c.newest = period{}, Sample{}
	return c
}

// withAllDown sets whether all zones are down. When that ends every node gets a new grace period,
// because one cause for all is more likely than many.
func (c ClusterState) withAllDown(now monotonic.Instant, down bool) ClusterState {
	if c.allDown && !down {
		c.graceStart = now
	}
	c.allDown = down
	return c
}

// withTaint notes that a Node of a zone got its NoExecute taint, here or by another replica. An
// older taint changes nothing.
func (c ClusterState) withTaint(at monotonic.Instant, zone string) ClusterState {
	if l := c.limiters[zone]; l.used && l.last >= at {
		return c
	}
	limiters := maps.Clone(c.limiters)
	if limiters == nil {
		limiters = map[string]limiter{}
	}
	limiters[zone] = limiter{last: at, used: true}
	c.limiters = limiters
	return c
}
