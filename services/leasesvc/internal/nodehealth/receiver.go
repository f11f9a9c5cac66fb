package nodehealth

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// doubtfulSilence is how many sessions of a replica must be silent before the replica doubts
	// what it receives. They must be more than half of its sessions.
	doubtfulSilence = 4
	// doubtfulConnections is the same for lost connections of agents.
	doubtfulConnections = 8
	// significantNodes is how many sessions here, and renewed Leases of Nodes of other replicas,
	// are compared. Nodes are divided among replicas by a hash of their names, so a failure of
	// nodes leaves about the same share of them alive at each replica.
	significantNodes = 16
	// significantShare is by how much the share of nodes that live elsewhere must be greater.
	significantShare = 0.25
	// recheck is how long before the end of a doubt renewals are looked at, and by how much they
	// extend it.
	recheck = 15 * time.Second
	// MaxReceiverDoubt bounds how long a doubt delays a verdict, and so does a series of refusals.
	MaxReceiverDoubt = 5 * time.Minute
	// refusalsEnd is how long nothing is refused before the next refusal begins a new series.
	refusalsEnd = time.Minute
)

// receiverDoubt is the doubt whether this replica receives the beats that are sent to it. It begins
// when most of its sessions are silent, or most connections of agents were lost: a certificate that
// has expired and a network policy have this effect, and so has a failure of all nodes. For a grace
// period, no session that expired counts as the end of a node. Until its end, it is extended as
// long as Leases are renewed that should not be: by the kubelets of silent sessions, or for Nodes
// of other replicas.
type receiverDoubt struct {
	period
	// until is when sessions that expired count again.
	until monotonic.Instant
	// ended is when the last doubt ended; 0 for never. began is when it began.
	began, ended monotonic.Instant
	// settled says that the last doubt ended because its time was over, and not because holders
	// came back.
	settled bool
}

// verdict returns when the silence of a session counts that expired: during a doubt at its end, and
// after it once a node had a grace period to come back.
func (d receiverDoubt) verdict(s *signs, grace time.Duration) monotonic.Instant {
	last := d.ended > 0 && s.expired <= d.ended && s.expired >= d.began.Add(-grace)
	switch {
	case last && d.settled:
		return d.ended
	case d.on && s.expired >= d.since.Add(-grace):
		return d.until
	case last:
		return d.ended.Add(grace)
	}
	return 0
}

// ReceiverDoubt returns since when this replica doubts what it receives, and until when the
// sessions that expired count as no end of a node.
func (c ClusterState) ReceiverDoubt() (since, until monotonic.Instant, doubts bool) {
	return c.receiver.since, c.receiver.until, c.receiver.on
}

// sessionCount counts the sessions of one replica, and the renewals that contradict their silence.
type sessionCount struct {
	// expiredSince is from when on an expired session counts, renewedSince is the same for a
	// renewal.
	expiredSince, renewedSince monotonic.Instant
	// heldBefore is when a shard must have been gained for its Nodes to count: until living holders
	// have reached this replica, it has the silent ones only.
	heldBefore monotonic.Instant
	// heard sessions are alive, silent ones are suspect or expired.
	heard, silent int
	// ownRenewals are of kubelets with a silent session. others are Nodes of other replicas.
	ownRenewals, others, otherRenewals int
}

// add takes a Node into account.
func (c *sessionCount) add(s *NodeState) {
	if !s.Ownership.Held {
		if s.traits.ready == corev1.ConditionUnknown {
			return
		}
		c.others++
		if s.signs.lease.moved && s.signs.lease.at > c.renewedSince {
			c.otherRenewals++
		}
		return
	}
	if s.Ownership.HeldSince > c.heldBefore {
		return
	}
	switch s.signs.session {
	case session.Alive:
		c.heard++
		return
	case session.Suspect:
	case session.Expired:
		// The previous holder of the shard declared the Nodes that it did not doubt.
		if s.signs.expired < c.expiredSince || !s.signs.expiredHere && s.traits.ready == corev1.ConditionUnknown {
			return
		}
	default:
		return
	}
	c.silent++
	if s.signs.lastRenewal() > c.renewedSince {
		c.ownRenewals++
	}
}

func (c *sessionCount) mostSilent() bool { return c.silent >= doubtfulSilence && c.silent > c.heard }

// contradicted returns whether Leases show that the silent sessions are no dead nodes: their
// kubelets renew them, or far more of the nodes of other replicas live.
func (c *sessionCount) contradicted() bool {
	if c.ownRenewals >= doubtfulSilence && 4*c.ownRenewals >= c.silent {
		return true
	}
	here := float64(c.heard) / float64(c.heard+c.silent)
	return c.heard+c.silent >= significantNodes && c.otherRenewals >= significantNodes &&
		float64(c.otherRenewals)/float64(c.others) >= here+significantShare
}

// newCount returns a count without Nodes. A doubt does not end because sessions expired long ago,
// and sessions of the last doubt begin no other.
func (d receiverDoubt) newCount(now monotonic.Instant, grace, firstBeat time.Duration) sessionCount {
	count := sessionCount{expiredSince: max(now.Add(-grace), d.ended+1), heldBefore: now.Add(-firstBeat)}
	if d.on {
		count.expiredSince, count.renewedSince = d.since.Add(-grace), max(d.since, now.Add(-grace))
	}
	return count
}

// next returns the doubt after a pass. lost says that most connections were lost.
func (d receiverDoubt) next(now monotonic.Instant, r sessionCount, lost bool, grace time.Duration) receiverDoubt {
	switch doubtful := r.mostSilent() || lost && r.silent >= doubtfulSilence; {
	case doubtful && !d.on:
		d.period, d.until = period{on: true, since: now}, now.Add(grace)
	case !doubtful && d.on:
		return receiverDoubt{began: d.since, ended: now}
	case d.on && now > d.until:
		return receiverDoubt{began: d.since, ended: d.until, settled: true}
	}
	if d.on && now <= d.until && d.until.Sub(now) < recheck && r.contradicted() {
		d.until = max(d.until, min(now.Add(recheck), d.since.Add(MaxReceiverDoubt)))
	}
	return d
}

// Connections are those of agents to this replica: how many are open, and how many were lost within
// a grace period.
type Connections struct{ Open, Lost int }

// mostLost returns whether most connections were lost.
func (c Connections) mostLost() bool { return c.Lost >= doubtfulConnections && c.Lost > c.Open }

// refusals is a series of moments at which this replica refused connections or holders for lack of
// capacity, because many agents connect at once or because of an attack. The holders may be living
// Nodes. They try again, and reach this replica at most Rules.FirstBeat after it refuses nothing
// any more. A long series delays no verdict beyond MaxReceiverDoubt.
type refusals struct {
	// last is 0 before the first refusal.
	since, last monotonic.Instant
}

func (r refusals) next(now monotonic.Instant) refusals {
	if r.last == 0 || now.Sub(r.last) > refusalsEnd {
		r.since = now
	}
	r.last = max(now, 1)
	return r
}

// verdict returns when the silence of a Node counts that would count at silent; 0 if the refusals
// have no say.
func (r refusals) verdict(silent monotonic.Instant, firstBeat time.Duration) monotonic.Instant {
	if r.last == 0 || silent < r.since {
		return 0
	}
	return min(r.last.Add(firstBeat), r.since.Add(MaxReceiverDoubt))
}

// Refusals returns since when this replica refuses connections or holders for lack of capacity, and
// until when a Node that falls silent meanwhile is not marked Unknown.
func (r Rules) Refusals(now monotonic.Instant, c ClusterState) (since, until monotonic.Instant, refuses bool) {
	until = c.refusals.verdict(c.refusals.since, r.FirstBeat)
	return c.refusals.since, until, until > now
}
