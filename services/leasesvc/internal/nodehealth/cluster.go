package nodehealth

import (
	"fmt"
	"maps"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Memory is what a pass hands to the next one. The zero Memory has seen nothing and checked nothing, so it declares nobody
// before its first self-check. Its methods return a new Memory.
type ClusterState struct {
	// floor is the moment before which no silence counts.
	floor monotonic.Instant
	// down tells that every zone was fully disrupted in the last pass.
	down bool
	// turns are by zone; a zone that is gone for a moment keeps its turn.
	turns map[string]turn
	// checked is when the last self-check that passed was begun; seen tells that there was one.
	checked monotonic.Instant
	seen    bool
	late    lapse
	outage  lapse
	stale   lapse
	// stalest is the newest Lease that was read and that the cache did not have yet.
	stalest Sample
}

// lapse is a time in which the process could not see.
type lapse struct {
	on    bool
	since monotonic.Instant
}

func (l lapse) begun(now monotonic.Instant) lapse {
	if l.on {
		return l
	}
	return lapse{on: true, since: now}
}

// Cause says why the process is blind.
type Cause string

// Causes of blindness.
const (
	// Unchecked: no self-check has passed yet.
	Unchecked Cause = "unchecked"
	// Unreachable: the kube-apiserver does not answer, so nodes could not renew either.
	Unreachable Cause = "apiserver-unreachable"
	// Stale: a Lease is newer than the cache has it.
	Stale Cause = "stale-cache"
	// Late: the process was not running for a while.
	Late Cause = "late"
)

// Blindness is why nothing is declared at the moment, and since when.
type Blindness struct {
	Cause  Cause
	Since  monotonic.Instant
	Detail string
}

// String says it for people, without the time.
func (b Blindness) String() string {
	what := map[Cause]string{
		Unchecked:   "nothing has been checked since the start",
		Unreachable: "kube-apiserver does not answer, so nodes could not renew either",
		Stale:       "the cache of Leases is behind",
		Late:        "the process did not run for a while",
	}[b.Cause]
	if b.Detail != "" {
		what += ": " + b.Detail
	}
	return what
}

// Blind tells whether and why nothing may be declared.
func (m ClusterState) Blind() (Blindness, bool) {
	switch {
	case m.outage.on:
		return Blindness{Cause: Unreachable, Since: m.outage.since}, true
	case m.stale.on:
		detail := fmt.Sprintf("the Lease of node %q has reached version %s", m.stalest.Node, m.stalest.LeaseVersion)
		return Blindness{Cause: Stale, Since: m.stale.since, Detail: detail}, true
	case m.late.on:
		return Blindness{Cause: Late, Since: m.late.since}, true
	case !m.seen:
		return Blindness{Cause: Unchecked}, true
	}
	return Blindness{}, false
}

// Delayed notes that the process did not run, up to now.
func (m ClusterState) Delayed(now monotonic.Instant) ClusterState {
	m.late = lapse{on: true, since: now}
	return m
}

// Checked notes a self-check that was begun at started and got its answers. After an outage every node is owed a new grace
// period: it could not renew any more than we could read. The check has passed if it found no Lease that is newer than the
// cache has it.
func (m ClusterState) CheckPassed(started, now monotonic.Instant, contradictions []Sample) ClusterState {
	if m.outage.on && now.Sub(m.outage.since) >= outage {
		m.floor = now
	}
	m.outage = lapse{}
	for _, c := range contradictions {
		m = m.CacheBehind(now, c)
	}
	if len(contradictions) > 0 {
		return m
	}
	if started >= m.late.since {
		m.late = lapse{}
	}
	if started >= m.stale.since {
		m.stale, m.stalest = lapse{}, Sample{}
	}
	m.checked, m.seen = max(m.checked, started), true
	return m
}

// Unanswered notes that the kube-apiserver did not answer a self-check. The outage is taken to have begun with the last check
// that passed.
func (m ClusterState) CheckFailed(now monotonic.Instant) ClusterState {
	if m.seen {
		now = min(now, m.checked)
	}
	m.outage = m.outage.begun(now)
	return m
}

// Contradicted notes that the Lease of a node is at a version which the cache has not reached: whatever the cache says of
// others is in doubt, too, until it has.
func (m ClusterState) CacheBehind(now monotonic.Instant, live Sample) ClusterState {
	m.stale = m.stale.begun(now)
	if Newer(live.LeaseVersion, m.stalest.LeaseVersion) {
		m.stalest = live
	}
	return m
}

// caughtUp ends the doubt that a contradiction raised, if the cache has got there or the Node is gone.
func (m ClusterState) caughtUp(subjects []NodeState) ClusterState {
	if !m.stale.on {
		return m
	}
	for i := range subjects {
		s := &subjects[i]
		if s.Node.Name == m.stalest.Node && Newer(m.stalest.LeaseVersion, s.LeaseVersion()) {
			return m
		}
	}
	m.stale, m.stalest = lapse{}, Sample{}
	return m
}

// after is the Memory once the zones have been counted. Nodes of a cluster that was wholly down are owed a new grace period
// when it comes back, for what was wrong with all of them was hardly the nodes.
func (m ClusterState) after(now monotonic.Instant, down bool) ClusterState {
	if m.down && !down {
		m.floor = now
	}
	m.down = down
	return m
}

// taken is the Memory after a node of the zone had its turn.
func (m ClusterState) taken(now monotonic.Instant, zone string) ClusterState {
	turns := maps.Clone(m.turns)
	if turns == nil {
		turns = map[string]turn{}
	}
	turns[zone] = turn{last: now, used: true}
	m.turns = turns
	return m
}

// observed notes a turn that another replica let a node of the zone have.
func (m ClusterState) observed(at monotonic.Instant, zone string) ClusterState {
	if t := m.turns[zone]; t.used && t.last >= at {
		return m
	}
	return m.taken(at, zone)
}
