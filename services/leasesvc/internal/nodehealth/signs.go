package nodehealth

import (
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// SignSource is where a sign of life came from.
type SignSource uint8

const (
	// GraceStart is no sign of life: the grace period began then.
	GraceStart SignSource = iota
	// StatusUpdate is a new heartbeat in the Ready condition.
	StatusUpdate
	// LeaseRenewal is a new renewTime in the Lease.
	LeaseRenewal
	// SessionBeat is a beat of the session.
	SessionBeat
)

func (s SignSource) String() string {
	return [...]string{"grace-start", "status", "lease", "session"}[s]
}

// signs are the signs of life of a node. Instants that never happened are 0.
type signs struct {
	// first is when the node was first observed. This is no sign of life and begins the first grace
	// period.
	first monotonic.Instant
	// posted is the last StatusUpdate.
	posted monotonic.Instant
	// renewed is the last LeaseRenewal, without the present version of the Lease: that may turn out
	// to be RenewedByUs.
	renewed monotonic.Instant
	// released is when a session ended without having expired.
	released monotonic.Instant
	// version and heartbeat are of the last Node whose status was read. reported says that a
	// kubelet wrote it.
	version   string
	heartbeat time.Time
	reported  bool
	lease     leaseSign
	session   session.State
	// agent is that of the session. observes says that it says when it observed the kubelet last.
	agent    unique.Handle[session.Agent]
	observes bool
	// reportedSince is since when the agent of an expired session has been heard; 0 while it is
	// not, or does not observe the kubelet.
	reportedSince monotonic.Instant
	// suspected and expired are when the session was observed to be. expiredHere says that the
	// session did not expire at another replica, heardHere that it lived here before it was silent.
	suspected, expired     monotonic.Instant
	expiredHere, heardHere bool
	// byOther is the last version of the Lease that another writer than leasesvc renewed.
	byOther LeaseRenewedByOther
	// kubeletsLease says that the present version is one. leaseDuration is that of the last one; 0
	// if it has none.
	kubeletsLease bool
	leaseDuration time.Duration
}

// leaseSign is the Lease as last observed.
type leaseSign struct {
	version   string
	renewTime time.Time
	at        monotonic.Instant
	// counts says that it was observed to change, and is not known to be RenewedByUs.
	counts bool
	// moved says that it was observed to change, by any writer.
	moved bool
}

// firstSigns returns the signs of a node that was not known. Its objects may be old, so they are no
// sign of life, and its grace period begins.
func (r Rules) firstSigns(now monotonic.Instant, o Observation) signs {
	s := signs{first: now, session: o.Session, agent: o.Agent, observes: o.SessionObserves, suspected: now, expired: now.Add(r.FirstBeat), byOther: o.Lease.ByOther}
	s.version, s.heartbeat, s.reported = statusOf(o.Node)
	s.lease = leaseSign{version: o.Lease.Version, renewTime: o.Lease.RenewTime, at: now}
	return s.observeReporter(now, o).observeWriter(o)
}

func (r Rules) nextSigns(now monotonic.Instant, s signs, o Observation) signs {
	s.agent, s.observes = o.Agent, o.SessionObserves
	return r.observeSession(now, s.observeStatus(now, o.Node), o.Session).observeReporter(now, o).observeLease(now, o).observeWriter(o)
}

func (s signs) observeReporter(now monotonic.Instant, o Observation) signs {
	switch {
	case !o.AgentLives || !o.SessionObserves || o.Session != session.Expired:
		s.reportedSince = 0
	case s.reportedSince == 0:
		s.reportedSince = max(now, 1) // 0 means that it is not heard
	}
	return s
}

// observeWriter takes into account whose the present version of the Lease is.
func (s signs) observeWriter(o Observation) signs {
	ours := o.Lease.RenewedByUs || o.WrittenVersion != "" && o.WrittenVersion == o.Lease.Version
	s.kubeletsLease = o.Lease.Version != "" && !ours
	switch {
	case s.kubeletsLease:
		s.leaseDuration = o.Lease.Duration
	case o.Lease.ByOther.Version != "":
		s.leaseDuration = o.Lease.ByOther.Duration
	}
	return s
}

func (s signs) observeStatus(now monotonic.Instant, node *corev1.Node) signs {
	if !Newer(node.ResourceVersion, s.version) {
		return s
	}
	reported, heartbeat := s.reported, s.heartbeat
	s.version, s.heartbeat, s.reported = statusOf(node)
	if s.reported && (!reported || !s.heartbeat.Equal(heartbeat)) {
		s.posted = now
	}
	return s
}

// statusOf reads the heartbeat. reported is false if no kubelet wrote the Ready condition.
func statusOf(node *corev1.Node) (version string, heartbeat time.Time, reported bool) {
	ready := ConditionOf(node, corev1.NodeReady)
	if ready == nil || ready.Reason == reasonNever {
		return node.ResourceVersion, time.Time{}, false
	}
	return node.ResourceVersion, ready.LastHeartbeatTime.Time, true
}

// observeSession takes the state of the session into account. A session that is expired when it is
// first observed expired at another replica. Its node has FirstBeat to beat here.
func (r Rules) observeSession(now monotonic.Instant, s signs, state session.State) signs {
	if state == s.session {
		return s
	}
	s.heardHere = s.session == session.Alive || s.heardHere && s.session == session.Suspect
	switch {
	case state == session.Gone && s.session != session.Expired:
		// It was released or moved to another replica: a new grace period begins.
		s.released = now
	case state == session.Suspect:
		s.suspected = now
	case state == session.Expired && s.session == session.Gone:
		s.suspected, s.expired, s.expiredHere = now, now.Add(r.FirstBeat), false
	case state == session.Expired && s.session == session.Alive:
		s.suspected, s.expired, s.expiredHere = now, now, true
	case state == session.Expired:
		s.expired, s.expiredHere = now, true
	}
	s.session = state
	return s
}

// observeLease counts a changed renewTime as a sign of life, also a smaller one: the node's clock
// may have been set back. A version that is not newer comes from a cache that was filled again from
// an older list.
func (s signs) observeLease(now monotonic.Instant, o Observation) signs {
	changed := Newer(o.Lease.Version, s.lease.version)
	if changed && !o.Lease.RenewTime.Equal(s.lease.renewTime) {
		s.renewed = s.lastRenewal()
		s.lease = leaseSign{renewTime: o.Lease.RenewTime, at: now, counts: true, moved: true}
	}
	if changed || o.Lease == (Lease{}) {
		s.lease.version = o.Lease.Version
	}
	if o.Lease.RenewedByUs || o.WrittenVersion != "" && o.WrittenVersion == s.lease.version {
		s.lease.counts = false
	}
	// leasesvc may have written the Lease again before this observation.
	if other := o.Lease.ByOther; Newer(other.Version, s.byOther.Version) {
		if !other.RenewTime.Equal(s.byOther.RenewTime) {
			s.renewed = max(s.renewed, now)
		}
		s.byOther = other
	}
	return s
}

// sessionSpeaks returns whether the session is alive or suspect.
func (s *signs) sessionSpeaks() bool {
	return s.session == session.Alive || s.session == session.Suspect
}

// lastRenewal returns the last renewal that is not known to be RenewedByUs; 0 for none.
func (s signs) lastRenewal() monotonic.Instant {
	if s.lease.counts {
		return max(s.lease.at, s.renewed)
	}
	return s.renewed
}

// last returns the last sign of life beside a session that is not over.
func (s signs) last() (heard monotonic.Instant, by SignSource) {
	heard, by = s.first, GraceStart
	for _, sign := range [...]struct {
		at monotonic.Instant
		by SignSource
	}{{s.posted, StatusUpdate}, {s.released, SessionBeat}, {s.lastRenewal(), LeaseRenewal}} {
		if sign.at > 0 && sign.at >= heard {
			heard, by = sign.at, sign.by
		}
	}
	return heard, by
}

// lastOfKubelet returns the kubelet's own last sign of life beside a session that expired; 0 for
// none:
//   - a renewal that is not RenewedByUs: the kubelet renews the Lease itself;
//   - a heartbeat in the status that came while beats were missing. An earlier one proves no more
//     than the beats did, unless the kubelet renewed the Lease itself within a grace period before.
func (s signs) lastOfKubelet(grace time.Duration) (at monotonic.Instant, by SignSource) {
	at, by = s.lastRenewal(), LeaseRenewal
	if s.posted > at && (s.posted > s.suspected || at > 0 && s.posted.Sub(at) <= grace) {
		at, by = s.posted, StatusUpdate
	}
	return at, by
}

// Newer returns whether resourceVersion a is newer than b. Both are decimal numbers, as
// k8s.io/apimachinery guarantees since v1.35. The empty version is older than all others.
func Newer(a, b string) bool {
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}

// NewerNode returns whether a is a newer version than b. b may be nil.
func NewerNode(a, b *corev1.Node) bool {
	return b == nil || Newer(a.ResourceVersion, b.ResourceVersion)
}
