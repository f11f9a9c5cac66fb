package nodehealth

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Health is the assessed health of a node.
type Health uint8

const (
	// Starting nodes have no Ready condition, and their startup grace period has not ended.
	Starting Health = iota
	// Alive nodes give signs of life, whatever their Ready condition is.
	Alive
	// Suspect nodes have been silent for half their grace period, or their session is suspect.
	Suspect
	// Silent nodes have passed their deadline and are not marked Unknown yet.
	Silent
	// Dead nodes are silent and marked Unknown.
	Dead
)

func (h Health) String() string {
	return [...]string{"starting", "alive", "suspect", "silent", "dead"}[h]
}

// Assessment is the health of a node at one moment, with its reasons.
type Assessment struct {
	Health Health
	// Heard is the last sign of life that counts, or with GraceStart the start of the grace period.
	// It is 0 if only the session table knows: while the session is suspect, and after it expired
	// without a later sign of life.
	Heard monotonic.Instant
	By    SignSource
	// Deadline is when the node becomes silent. It is 0 while a session keeps it alive, which has a
	// deadline of its own.
	Deadline monotonic.Instant
	// Delay is the row of the table that decides. For a silent node it is why the node is not
	// marked Unknown, or zero if nothing delays that.
	Delay Delay
	// CutOff says that the agent of the Node lives, and that its kubelet reaches no kube-apiserver.
	CutOff bool
}

// LivesBesideSession reports whether the kubelet is not silent because of a sign of its own, which
// counts for more than the last beat.
func (a *Assessment) LivesBesideSession() bool {
	return a.Health < Silent && (a.By == LeaseRenewal || a.By == StatusUpdate)
}

// Assess returns the health of a Node whose shard this replica holds.
func (r Rules) Assess(now monotonic.Instant, c ClusterState, s *NodeState) Assessment {
	var a Assessment
	sign, cutOff := r.cutOff(now, c, s)
	if a.CutOff = cutOff; s.signs.sessionSpeaks() && !cutOff {
		if s.signs.session == session.Alive {
			return Assessment{Health: Alive, Heard: now, By: SessionBeat}
		}
		return Assessment{Health: Suspect, By: SessionBeat}
	}
	if s.traits.unknown {
		// A Node that is marked stays dead until a later sign of life. A new grace period does not
		// revive it.
		last := sign
		if !cutOff {
			last = r.lastSign(s, 0)
		}
		if last.heard <= s.unknownSince || now > last.until {
			a.Health, a.Heard, a.By, a.Deadline = Dead, last.heard, last.by, last.until
			return a
		}
	}
	if !cutOff {
		sign = r.lastSign(s, s.Ownership.HeldSince)
	}
	delays := r.delays(c, s, sign)
	a.Heard, a.By, a.Delay, a.Deadline = sign.heard, sign.by, delays.deciding(), delays.deadline()
	switch {
	case now > a.Deadline:
		a.Health = Silent
		if a.Delay.Until != Open {
			a.Delay = Delay{}
		}
	case s.traits.ready == "":
		a.Health = Starting
	case now.Sub(a.Heard) > r.graceOf(s)/2 || s.signs.session == session.Expired:
		a.Health = Suspect
	default:
		a.Health = Alive
	}
	return a
}

// sign is the sign of life that decides how long a node may be silent.
type sign struct {
	heard monotonic.Instant
	by    SignSource
	until monotonic.Instant
}

// allow replaces a sign by one that is worth more.
func (g *sign) allow(heard monotonic.Instant, by SignSource, worth time.Duration) {
	if heard.Add(worth) > g.until {
		*g = sign{heard: heard, by: by, until: heard.Add(worth)}
	}
}

// lastSign returns the sign of life of a Node that its session does not keep alive. Without a
// session the grace period starts at heldSince at the earliest.
func (r Rules) lastSign(s *NodeState, heldSince monotonic.Instant) sign {
	if s.signs.session == session.Expired {
		return r.signAfterExpiry(s)
	}
	heard, by := s.signs.last()
	if heldSince > heard {
		heard, by = heldSince, GraceStart
	}
	return sign{heard: heard, by: by, until: heard.Add(r.graceOf(s))}
}

// signAfterExpiry returns the sign of life that allows most to a Node whose session has expired:
//   - The last beat is worth Rules.SessionGrace, and no less than two renewals of the kubelet's
//     Lease. The session has expired when that is over.
//   - A sign of the kubelet's own that came later is worth the grace period: the kubelet reaches
//     kube-apiserver, and its agent is silent. An earlier one proves no more than the beat.
//   - While the agent says that the kubelet is silent, the kubelet's own sign is worth as much as a
//     beat.
//   - A Node that is new to this process may have given signs before, and has a grace period.
func (r Rules) signAfterExpiry(s *NodeState) sign {
	worth := r.worthOfBeat(s)
	g := sign{by: SessionBeat, until: s.signs.expired.Add(worth - r.SessionGrace)}
	switch own, by := s.signs.own(); {
	case own == 0:
	case s.signs.reportsSilence:
		g.allow(own, by, worth)
	case s.signs.lastBeat == 0 || own > s.signs.lastBeat.Add(r.besideBeat()):
		g.allow(own, by, r.GracePeriod)
	}
	if s.signs.released > s.signs.lastBeat {
		g.allow(s.signs.released, SessionBeat, r.GracePeriod) // the end of an earlier session that had not expired
	}
	if s.traits.ready == "" || s.signs.lastBeat == 0 && (s.signs.kubeletsLease || s.signs.first > s.Ownership.HeldSince) {
		g.allow(s.signs.first, GraceStart, r.graceOf(s))
	}
	return g
}

// besideBeat returns how long after the last beat a sign of the kubelet's own proves no more than
// the beat: 6 s by default, which is more than one interval of the beats. A kubelet that lives
// gives its next sign in time: it renews its Lease after 10.4 s at most, so within 16.4 s of the
// beat.
func (r Rules) besideBeat() time.Duration { return r.SessionGrace * 3 / 10 }

// worthOfBeat returns how long a Node may be silent after a beat. A kubelet whose Lease lasts
// longer than by default renews it more seldom. No kubelet renews a Lease in time whose half is
// longer than the grace period: another program wrote the duration.
func (r Rules) worthOfBeat(s *NodeState) time.Duration {
	if half := s.signs.leaseDuration / 2; half <= r.GracePeriod {
		return max(r.SessionGrace, half)
	}
	return r.SessionGrace
}

// cutOff returns the last sign that the kubelet of a Node reached a kube-apiserver, and whether it
// has reached none for the grace period although its agent beats: it gets no Pods, and its status
// is not true. The time counts from when this process could see such a sign, and from when kubelets
// in general were served again: a fault that all of them have is not theirs.
func (r Rules) cutOff(now monotonic.Instant, c ClusterState, s *NodeState) (g sign, cutOff bool) {
	if !s.signs.sessionSpeaks() {
		return sign{}, false
	}
	at, by, known := s.signs.reached()
	since := max(at, s.signs.watched, c.servedSince)
	if !known || now <= since.Add(r.GracePeriod) {
		return sign{}, false
	}
	if at == 0 {
		at = since
	}
	return sign{heard: at, by: by, until: since.Add(r.GracePeriod)}, true
}

// graceOf returns the grace period of a Node.
func (r Rules) graceOf(s *NodeState) time.Duration {
	if s.traits.ready == "" {
		return r.StartupGracePeriod
	}
	return r.GracePeriod
}
