package nodehealth

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Source says where a sign of life came from.
type SignSource uint8

const (
	// Reprieve is no sign of life: the node was first seen then, or silence before it does not count.
	GraceStart SignSource = iota
	// Status is a new heartbeat in the Ready condition.
	StatusUpdate
	// Renewal is a new renewTime in the Lease.
	LeaseRenewal
	// Beats are those of the session.
	SessionBeat
)

func (s SignSource) String() string {
	return [...]string{"reprieve", "status", "lease", "session"}[s]
}

// pulse is what is remembered of a node's signs of life.
type pulse struct {
	// begun is when the node was first seen, which is no sign of life and begins the first grace period.
	begun monotonic.Instant
	// posted, renewed and beaten are the last signs from each source; 0 for none. renewed leaves out the Lease as it is now while
	// that may turn out to be an echo, and beaten is when a session ended without having expired.
	posted, renewed, beaten monotonic.Instant
	// version and heartbeat are of the last Node whose status was taken in; reported tells that the kubelet wrote it.
	version   string
	heartbeat time.Time
	reported  bool
	lease     leaseMark
	session   Session
	// suspected and expired are when the session was found to be.
	suspected, expired monotonic.Instant
}

// leaseMark is the Lease as last seen.
type leaseMark struct {
	version string
	renewed time.Time
	at      monotonic.Instant
	// counts tells that it was seen to change, and is not known to be an echo.
	counts bool
}

// begun is the pulse of a node that was not known. Whatever its objects say is older than our seeing them, so nothing in them
// is a sign of life, and the grace period begins.
func (r Rules) begun(now monotonic.Instant, o Observation) pulse {
	p := pulse{begun: now, session: o.Session, suspected: now, expired: now.Add(r.FirstBeat)}
	p.version, p.heartbeat, p.reported = statusOf(o.Node)
	p.lease = leaseMark{version: o.Lease.Version, renewed: o.Lease.RenewTime, at: now}
	return p
}

func (r Rules) heard(now monotonic.Instant, p pulse, o Observation) pulse {
	return r.seeSession(now, p.seeStatus(now, o.Node), o).seeLease(now, o)
}

func (p pulse) seeStatus(now monotonic.Instant, node *corev1.Node) pulse {
	if !Newer(node.ResourceVersion, p.version) {
		return p
	}
	reported, heartbeat := p.reported, p.heartbeat
	p.version, p.heartbeat, p.reported = statusOf(node)
	if p.reported && (!reported || !p.heartbeat.Equal(heartbeat)) {
		p.posted = now
	}
	return p
}

// statusOf reads the heartbeat; a Ready condition that only says that nobody ever reported was put there by no kubelet.
func statusOf(node *corev1.Node) (version string, heartbeat time.Time, reported bool) {
	ready := conditionOf(node, corev1.NodeReady)
	if ready == nil || ready.Reason == reasonNever {
		return node.ResourceVersion, time.Time{}, false
	}
	return node.ResourceVersion, ready.LastHeartbeatTime.Time, true
}

// seeSession takes in how the session stands. One that is expired when it is first seen was silent elsewhere, as whoever kept it
// has told; a holder that came back in the very moment of its loss is heard here with its next beat.
func (r Rules) seeSession(now monotonic.Instant, p pulse, o Observation) pulse {
	switch {
	case o.Session == p.session:
		return p
	case o.Session == NoSession && p.session != SessionExpired:
		// It was released in good order, or went on elsewhere: from now on the node has the whole grace.
		p.beaten = now
	case o.Session == SessionSuspect:
		p.suspected = now
	case o.Session == SessionExpired && p.session == NoSession:
		p.suspected, p.expired = now, now.Add(r.FirstBeat)
	case o.Session == SessionExpired && p.session == SessionAlive:
		p.suspected, p.expired = now, now
	case o.Session == SessionExpired:
		p.expired = now
	}
	p.session = o.Session
	return p
}

// seeLease takes a changed renewTime for a sign of life, also one that went backwards: only the node's clock did. An echo is none,
// and a version that is not newer is a cache that was filled again from the past.
func (p pulse) seeLease(now monotonic.Instant, o Observation) pulse {
	changed := Newer(o.Lease.Version, p.lease.version)
	if changed && !o.Lease.RenewTime.Equal(p.lease.renewed) {
		p.renewed = p.lastRenewal()
		p.lease = leaseMark{renewed: o.Lease.RenewTime, at: now, counts: true}
	}
	if changed || o.Lease == (Lease{}) {
		p.lease.version = o.Lease.Version
	}
	if o.Lease.RenewedByUs || o.WrittenVersion != "" && o.WrittenVersion == p.lease.version {
		p.lease.counts = false
	}
	return p
}

// lastRenewal is when the Lease was last renewed by somebody who is not known to be the session's owner; 0 for never.
func (p pulse) lastRenewal() monotonic.Instant {
	if p.lease.counts {
		return max(p.lease.at, p.renewed)
	}
	return p.renewed
}

// last is the last sign of life.
func (p pulse) last() (heard monotonic.Instant, by SignSource) {
	heard, by = p.begun, GraceStart
	for _, sign := range [...]struct {
		at monotonic.Instant
		by SignSource
	}{{p.posted, StatusUpdate}, {p.beaten, SessionBeat}, {p.lastRenewal(), LeaseRenewal}} {
		if sign.at > 0 && sign.at >= heard {
			heard, by = sign.at, sign.by
		}
	}
	return heard, by
}

// contradiction is the last sign of life that a node whose session expired has given in another way; 0 for none:
//   - a renewal that is no echo of the session: it comes from a kubelet that renews by itself, so the session cannot speak for it;
//   - a heartbeat in its status that came when beats were missing already: any kubelet posts one every few minutes, so an earlier
//     one says no more than the beats did;
//   - the end of an earlier session that had not expired.
func (p pulse) contradiction() (at monotonic.Instant, by SignSource) {
	at, by = p.lastRenewal(), LeaseRenewal
	if p.posted > p.suspected && p.posted > at {
		at, by = p.posted, StatusUpdate
	}
	if p.beaten > at {
		at, by = p.beaten, SessionBeat
	}
	return at, by
}

// Newer tells whether resourceVersion a came after b: they are decimal numbers (k8s.io/apimachinery, since v1.35 by contract),
// and an empty one comes before all others.
func Newer(a, b string) bool {
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}

// NewerNode tells whether a is a later state of the Node than b: of a name that was used again, or of the same object.
func NewerNode(a, b *corev1.Node) bool {
	return b == nil || Newer(a.ResourceVersion, b.ResourceVersion)
}
