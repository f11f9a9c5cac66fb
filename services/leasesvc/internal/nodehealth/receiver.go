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
	// noneHeardSilence is how many silent sessions are enough if no other session is heard. One is
	// not: a dead node that has a replica of its own is marked as early as any other.
	noneHeardSilence = 2
	// significantNodes is how many sessions here, and renewed Leases of Nodes of other replicas,
	// are compared. Nodes are divided among replicas by a hash of their names, so a failure of
	// nodes leaves about the same share of them alive at each replica.
	significantNodes = 16
	// significantShare is by how much the share of nodes that live elsewhere must be greater.
	significantShare = 0.25
	// fewHeardShare is the share of silent sessions, of doubtfulSilence at least, from which a
	// replica hears few of its holders. It also does if it hears none.
	fewHeardShare = 0.8
	// fewHeardLasts is how long a replica hears few until that lasts. Its shards move to another
	// one five seconds later; see term.Candidate.SetDoubtful. minReceiverDoubt is the least time
	// of a doubt, and from when few are heard in it, so that they can move before its end.
	fewHeardLasts    = 5 * time.Second
	minReceiverDoubt = 20 * time.Second
	// fewHeardKept is how long a replica ranks behind others after it lastingly heard few. It is
	// longer than a doubt. So if all nodes are dead, each replica passes the shards on once, and
	// the last one marks the nodes at the end of its doubt.
	fewHeardKept = 2 * MaxReceiverDoubt
	// recheck is how long before the end of a doubt renewals are looked at, and by how much they
	// extend it.
	recheck = 15 * time.Second
	// MaxReceiverDoubt bounds how long a doubt delays a verdict, and how long refusals do.
	MaxReceiverDoubt = 5 * time.Minute
	// refusalsEnd is how long nothing is refused until a series of refusals is over: longer than a
	// refused holder pauses.
	refusalsEnd = 2 * time.Minute
)

// receiverDoubt is the doubt whether this replica receives the beats that are sent to it. It begins
// when most of its sessions are silent, or most connections of agents were lost: a certificate that
// has expired and a network policy have this effect, and so has a failure of all nodes. A Node that
// had a session at a former leader, and none here, counts as a silent session.
//
// For a grace period, no session that expired counts as the end of a node. A doubt is extended as
// long as Leases are renewed that should not be, by the kubelets of silent sessions or for Nodes of
// other replicas; while none of its sessions has expired; and so that shards can move.
type receiverDoubt struct {
	period
	// until is when sessions that expired count again.
	until monotonic.Instant
	// last is the last doubt that ended. settled says that it ended because its time was over, and
	// not because holders came back.
	last    endedDoubt
	settled bool
	// before is the doubt before the last one, if holders ended it a short time before the last one
	// ended; else 0.
	before endedDoubt
}

// endedDoubt is a doubt that is over; ended is 0 for none. If holders ended it, the others that
// fell silent in it have a grace period from then on.
type endedDoubt struct{ began, ended monotonic.Instant }

// includes returns whether a silence belongs to the doubt.
func (e endedDoubt) includes(silent monotonic.Instant, grace time.Duration) bool {
	return e.ended > 0 && silent <= e.ended && silent >= e.began.Add(-grace)
}

// verdict returns when the silence of a node counts that began to be silent at a moment: during a
// doubt at its end, and after it once the node had a grace period to come back.
func (d receiverDoubt) verdict(silent monotonic.Instant, grace time.Duration) monotonic.Instant {
	var before monotonic.Instant
	if d.before.includes(silent, grace) {
		before = d.before.ended.Add(grace)
	}
	last := d.last.includes(silent, grace)
	switch {
	case last && d.settled:
		return max(before, d.last.ended)
	case d.on && silent >= d.since.Add(-grace):
		return max(before, d.until)
	case last:
		return d.last.ended.Add(grace)
	}
	return before
}

// over returns the state after the present doubt.
func (d receiverDoubt) over(ended monotonic.Instant, settled bool, grace time.Duration) receiverDoubt {
	next := receiverDoubt{last: endedDoubt{began: d.since, ended: ended}, settled: settled, before: d.before}
	if d.last.ended > 0 && !d.settled {
		next.before = d.last
	}
	if ended >= next.before.ended.Add(grace) {
		next.before = endedDoubt{}
	}
	return next
}

// Doubted returns for how long this replica has been in doubt whether living Nodes fell silent: in
// a doubt, and for a grace period after one that ended because holders were heard.
func (c ClusterState) Doubted(now monotonic.Instant, grace time.Duration) (lasted time.Duration, doubts bool) {
	d := c.receiver
	switch {
	case d.on:
		return now.Sub(d.since), true
	case d.last.ended > 0 && !d.settled && now < d.last.ended.Add(grace):
		return now.Sub(d.last.began), true
	}
	return 0, false
}

// ReceiverDoubt returns since when this replica doubts what it receives, and until when the
// sessions that expired count as no end of a node.
func (c ClusterState) ReceiverDoubt() (since, until monotonic.Instant, doubts bool) {
	return c.receiver.since, c.receiver.until, c.receiver.on
}

// fewHeard is since when this replica hears few of its holders, and until when it therefore ranks
// behind others, also without shards.
type fewHeard struct {
	period
	until monotonic.Instant
	// lasting is when it began to last. shards are those that this replica had then.
	lasting monotonic.Instant
	shards  map[int]struct{}
}

// next returns the state after a pass of a cluster. It ends if holders are heard, without a doubt.
// While shards move away, those that remain prove nothing: holders of a later shard do.
func (f fewHeard) next(now monotonic.Instant, count sessionCount, c ClusterState) fewHeard {
	_, _, refuses := c.Refusals(now)
	switch {
	case c.receiver.on && count.fewHeard() && !refuses:
		f.period = f.begun(now)
		if now.Sub(f.since) < fewHeardLasts {
			return f
		}
		if now >= f.until {
			f.lasting, f.shards = now, count.shards
		}
		f.until = now.Add(fewHeardKept)
	case !c.receiver.on && !count.fewHeard() && (count.heardLater > 0 || count.heard > 0 && !count.left):
		return fewHeard{}
	default:
		f.period = period{}
	}
	return f
}

// HearsFew returns whether this replica hears few of its holders or none, or did so lately,
// although it has the capacity for them. Another replica may hear them.
func (c ClusterState) HearsFew(now monotonic.Instant) bool {
	return c.fewHeard.on || now < c.fewHeard.until
}

// sessionCount counts the sessions of one replica, and the renewals that contradict their silence.
type sessionCount struct {
	now   monotonic.Instant
	grace time.Duration
	// receiver and before are those of the last pass.
	receiver receiverDoubt
	before   fewHeard
	// silentSince is from when on the silence of a session counts, renewedSince is the same for a
	// renewal.
	silentSince, renewedSince monotonic.Instant
	// heldBefore is when a shard must have been gained for silent Nodes to count that were never
	// heard here: until living holders have reached this replica, it has the silent ones only.
	heldBefore monotonic.Instant
	// shards are those with Nodes. left says that one with Nodes was given up since this replica
	// lastingly heard few.
	shards map[int]struct{}
	left   bool
	// heard sessions are alive, or their agents live and report a silent kubelet. heardLater are
	// alive, in shards that were gained after this replica lastingly heard few.
	heard, heardLater int
	// silent sessions are suspect or expired. evident ones of them are evidence about a replica
	// that hears none: the Node is not marked, and this replica has heard it, or heard few others
	// before. excused ones fell silent in the last doubt, and still have time to come back.
	silent, suspect, evident, excused int
	// ownRenewals are of kubelets with a silent session. others are Nodes of other replicas.
	ownRenewals, others, otherRenewals int
}

// newSessionCount returns a count without Nodes. A doubt does not end because sessions fell silent
// long ago, and sessions of the last doubt begin no other.
func (c ClusterState) newSessionCount(now monotonic.Instant, grace, firstBeat time.Duration) sessionCount {
	count := sessionCount{
		now: now, grace: grace, receiver: c.receiver, before: c.fewHeard, shards: map[int]struct{}{},
		silentSince: max(now.Add(-grace), c.receiver.last.ended+1), heldBefore: now.Add(-firstBeat),
	}
	if c.receiver.on {
		count.silentSince, count.renewedSince = c.receiver.since.Add(-grace), max(c.receiver.since, now.Add(-grace))
	}
	return count
}

// add takes a Node into account. missing says that the Node had a session at a former leader and
// that this replica has not heard it.
func (c *sessionCount) add(s *NodeState, missing bool) {
	marked := s.traits.ready == corev1.ConditionUnknown
	if !s.Ownership.Held {
		if _, had := c.before.shards[s.Ownership.Shard]; had {
			c.left = true
		}
		if !marked {
			c.addOther(s)
		}
		return
	}
	c.shards[s.Ownership.Shard] = struct{}{}
	if s.signs.session != session.Alive && !s.signs.heardHere && s.Ownership.HeldSince > c.heldBefore {
		return
	}
	switch s.signs.session {
	case session.Alive:
		c.heard++
		if s.Ownership.HeldSince > c.before.lasting {
			c.heardLater++
		}
	case session.Suspect:
		c.addSilent(s, marked)
	case session.Expired:
		switch {
		case s.signs.reportedSince > 0:
			c.heard++
		case s.signs.expiredHere || !marked: // the previous holder of the shard marked those that it did not doubt
			c.addSilent(s, marked)
		}
	case session.Gone:
		if missing {
			c.silent++
		}
		if missing && c.before.until > 0 {
			c.evident++
		}
	}
}

func (c *sessionCount) addSilent(s *NodeState, marked bool) {
	if s.signs.suspected < c.silentSince {
		if !marked && c.receiver.verdict(s.signs.suspected, c.grace) > c.now {
			c.excused++
		}
		return
	}
	c.silent++
	if s.signs.session == session.Suspect {
		c.suspect++
	}
	if !marked {
		c.evident++
	}
	if s.signs.lastRenewal() > c.renewedSince {
		c.ownRenewals++
	}
}

// addOther takes a Node of another replica into account that is not marked.
func (c *sessionCount) addOther(s *NodeState) {
	c.others++
	if s.signs.lease.moved && s.signs.lease.at > c.renewedSince {
		c.otherRenewals++
	}
}

// noneHeard returns whether all sessions are silent. One is enough in a doubt, and for a replica
// that heard few before, and none since.
func (c *sessionCount) noneHeard() bool {
	return c.heard == 0 && c.evident > 0 && (c.evident+c.excused >= noneHeardSilence || c.receiver.on || c.before.until > 0)
}

// fewHeard returns whether few sessions or none are heard.
func (c *sessionCount) fewHeard() bool {
	silent := c.stillSilent()
	return c.noneHeard() || silent >= doubtfulSilence && float64(silent) >= fewHeardShare*float64(c.heard+silent)
}

func (c *sessionCount) mostSilent() bool {
	silent := c.stillSilent()
	return c.noneHeard() || silent >= doubtfulSilence && silent > c.heard
}

// stillSilent returns the silent sessions, with those that fell silent in the last doubt if others
// did since.
func (c *sessionCount) stillSilent() int {
	if c.evident == 0 {
		return c.silent
	}
	return c.silent + c.excused
}

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

// next returns the doubt after a pass. lost says that most connections were lost.
func (d receiverDoubt) next(now monotonic.Instant, r sessionCount, lost bool, grace time.Duration) receiverDoubt {
	if d.on && r.fewHeard() { // the shards have the time to move
		few := r.before.begun(now)
		d.until = max(d.until, min(few.since.Add(minReceiverDoubt), d.since.Add(MaxReceiverDoubt)))
	}
	switch doubtful := r.mostSilent() || lost && r.silent >= doubtfulSilence; {
	case doubtful && !d.on:
		d.period, d.until = period{on: true, since: now}, now.Add(max(grace, minReceiverDoubt))
	case !doubtful && d.on:
		return d.over(now, false, grace)
	case d.on && now > d.until && r.suspect == r.silent && now.Sub(d.since) < MaxReceiverDoubt:
		d.until = now.Add(recheck) // no session has expired, so nothing was doubted yet
	case d.on && now > d.until:
		return d.over(d.until, true, grace)
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
// Nodes that try again. The refusals delay the verdict about a Node by MaxReceiverDoubt at most.
type refusals struct {
	// last is 0 without a series. until is when all refused holders have tried again.
	since, last, until monotonic.Instant
}

func (r refusals) next(now monotonic.Instant, returnWithin time.Duration) refusals {
	if r.last == 0 {
		r.since = now
	}
	r.last, r.until = max(now, 1), max(r.until, now.Add(returnWithin))
	return r
}

// verdict returns when the silence of a Node counts that would count at silent; 0 if that is before
// the first refusal.
func (r refusals) verdict(silent monotonic.Instant) monotonic.Instant {
	if r.last == 0 || silent < r.since {
		return 0
	}
	return min(r.until, silent.Add(MaxReceiverDoubt))
}

// withoutOldRefusals ends a series of refusals that is over.
func (c ClusterState) withoutOldRefusals(now monotonic.Instant) ClusterState {
	if now.Sub(c.refusals.last) > refusalsEnd {
		c.refusals = refusals{}
	}
	return c
}

// Refusals returns since when this replica refuses connections or holders for lack of capacity, and
// until when a Node that falls silent now is not marked Unknown.
func (c ClusterState) Refusals(now monotonic.Instant) (since, until monotonic.Instant, refuses bool) {
	until = c.refusals.verdict(now)
	return c.refusals.since, until, until > now
}
