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
	// ServedRequest is the last request of a kubelet that kube-apiserver served, as the agent says
	// that forwards them. It is at most as old as the first one that failed.
	ServedRequest
)

func (s SignSource) String() string {
	return [...]string{"grace-start", "status", "lease", "session", "requests"}[s]
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
	// agent is that of the session; the zero Handle is not known. observes says that it says when
	// it observed the kubelet last.
	agent    unique.Handle[session.Agent]
	observes bool
	// watched is when the session, or an agent in another mode, was first observed.
	watched monotonic.Instant
	// reportsSilence says that the agent of an expired session is heard, and observes the kubelet:
	// it says that the kubelet is silent.
	reportsSilence bool
	// cutOff is since when the agent has seen all requests of its kubelet fail; 0 if it does not
	// say so.
	cutOff monotonic.Instant
	// expired is when the session was observed to be. heardHere says that it lived at this replica
	// before it was silent, and lastBeat is when; 0 if it expired without that.
	expired   monotonic.Instant
	heardHere bool
	lastBeat  monotonic.Instant
	// byOther is the last version of the Lease that another writer than leasesvc renewed.
	byOther LeaseRenewedByOther
	// kubeletsLease says that the present version is one. leaseDuration is that of the last one; 0
	// if it has none.
	kubeletsLease bool
	// renewsItself says that the kubelet renewed its Lease twice within half a grace period.
	renewsItself  bool
	leaseDuration time.Duration
}

// leaseSign is the Lease as last observed.
type leaseSign struct {
	version   string
	renewTime time.Time
	at        monotonic.Instant
	// counts says that it was observed to change, and is not known to be RenewedByUs.
	counts bool
}

// firstSigns returns the signs of a node that was not known. Its objects may be old, so they are no
// sign of life, and its grace period begins.
func (r Rules) firstSigns(now monotonic.Instant, o Observation) signs {
	s := signs{first: now, session: o.Session, expired: now, watched: now, byOther: o.Lease.ByOther}
	s.version, s.heartbeat, s.reported = statusOf(o.Node)
	s.lease = leaseSign{version: o.Lease.Version, renewTime: o.Lease.RenewTime, at: now}
	return s.observeAgent(now, o).observeWriter(o)
}

func (r Rules) nextSigns(now monotonic.Instant, s signs, o Observation) signs {
	return r.observeSession(now, s.observeStatus(now, o.Node), o.Session).observeAgent(now, o).observeLease(now, r.GracePeriod/2, o).observeWriter(o)
}

func (s signs) observeAgent(now monotonic.Instant, o Observation) signs {
	if session.ModeOf(s.agent) != session.ModeOf(o.Agent) {
		s.watched, s.renewsItself = now, false
	}
	s.agent, s.observes = o.Agent, o.SessionObserves
	s.reportsSilence = o.AgentLives && o.SessionObserves && o.Session == session.Expired
	if o.CutOffFor == 0 {
		s.cutOff = 0
		return s
	}
	// A later begin is that of another cut-off, after a request was served.
	s.cutOff = max(now.Add(-o.CutOffFor), s.cutOff, 1) // 0 means that it is not cut off
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

// observeSession takes the state of the session into account.
func (r Rules) observeSession(now monotonic.Instant, s signs, state session.State) signs {
	if state == s.session {
		return s
	}
	if s.session == session.Gone {
		s.watched = now
	}
	s.heardHere = s.session == session.Alive || s.heardHere && s.session == session.Suspect
	switch {
	case state == session.Gone && s.session != session.Expired:
		// It was released or moved to another replica: a new grace period begins.
		s.released = now
	case state == session.Expired:
		s.expired, s.lastBeat = now, 0
		if s.heardHere {
			s.lastBeat = now.Add(-r.SessionGrace)
		}
	}
	s.session = state
	return s
}

// observeLease counts a changed renewTime as a sign of life, also a smaller one: the node's clock
// may have been set back. A version that is not newer comes from a cache that was filled again from
// an older list.
func (s signs) observeLease(now monotonic.Instant, pace time.Duration, o Observation) signs {
	before := s.lastRenewal()
	changed := Newer(o.Lease.Version, s.lease.version)
	if changed && !o.Lease.RenewTime.Equal(s.lease.renewTime) {
		s.renewed = s.lastRenewal()
		s.lease = leaseSign{renewTime: o.Lease.RenewTime, at: now, counts: true}
	}
	if changed || o.Lease == (Lease{}) {
		s.lease.version = o.Lease.Version
	}
	if o.Lease.Version == s.lease.version && (o.Lease.RenewedByUs || o.WrittenVersion == s.lease.version) {
		s.lease.counts = false
	}
	// leasesvc may have written the Lease again before this observation.
	if other := o.Lease.ByOther; Newer(other.Version, s.byOther.Version) {
		if !other.RenewTime.Equal(s.byOther.RenewTime) {
			s.renewed = max(s.renewed, now)
		}
		s.byOther = other
	}
	if last := s.lastRenewal(); before > 0 && last > before && last.Sub(before) <= pace {
		s.renewsItself = true
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

// own returns the last sign of life of the kubelet's own side; 0 for none.
func (s signs) own() (at monotonic.Instant, by SignSource) {
	if renewal := s.lastRenewal(); renewal > s.posted {
		return renewal, LeaseRenewal
	}
	return s.posted, StatusUpdate
}

// reached returns the last sign that the kubelet reaches kube-apiserver; 0 for none. known is false
// if a later one may not have been seen: only a kubelet that writes its Lease itself, or whose
// agent says since when its requests fail, shows that it reaches none.
func (s signs) reached() (at monotonic.Instant, by SignSource, known bool) {
	at, by = s.own()
	switch session.ModeOf(s.agent) {
	case session.ModeEndpoint:
		if s.cutOff >= at { // otherwise the agent has not said yet that a request was served
			at, by = s.cutOff, ServedRequest
		}
		return at, by, s.cutOff > 0
	case session.ModeProbe:
		return at, by, true
	}
	return at, by, s.renewsItself && !s.observes
}

// served returns when the kubelet last reached kube-apiserver, as far as its Lease or its agent
// shows; 0 for not at all.
func (s signs) served(now monotonic.Instant) monotonic.Instant {
	if s.session == session.Alive && s.cutOff == 0 && session.ModeOf(s.agent) == session.ModeEndpoint {
		return now
	}
	return s.lastRenewal()
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
