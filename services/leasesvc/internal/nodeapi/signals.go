package nodeapi

import (
	"slices"
	"time"

	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// signal is a Signal with times of the standard library.
type signal struct {
	source        nodev1.SignalSource
	seen, expires time.Time
}

// latest returns when the signal was seen at the latest.
func (s signal) latest(now time.Time) time.Time {
	switch {
	case !s.seen.IsZero():
		return s.seen
	case !s.expires.IsZero():
		return s.expires
	}
	return now
}

// signals returns the signals of life that are known of a Node, the latest first.
func (v *nodeView) signals(status *explain.NodeStatus) []*nodev1.Signal {
	signals := v.leaseSignals(status)
	for _, other := range []struct {
		source nodev1.SignalSource
		by     nodehealth.SignSource
		at     monotonic.Instant
	}{
		{nodev1.SignalSource_SIGNAL_SOURCE_LEASE_OBJECT, nodehealth.LeaseRenewal, v.node.LeaseRenewed},
		{nodev1.SignalSource_SIGNAL_SOURCE_NODE_STATUS, nodehealth.StatusUpdate, v.node.StatusUpdated},
	} {
		if other.at > 0 {
			signals = append(signals, signal{source: other.source, seen: v.snapshot.Wall(other.at), expires: expiryBy(status, other.by)})
		}
	}
	if status.By == nodehealth.GraceStart {
		signals = append(signals, signal{source: nodev1.SignalSource_SIGNAL_SOURCE_NONE, seen: status.Heard, expires: status.Deadline})
	}
	slices.SortStableFunc(signals, func(a, b signal) int { return b.latest(v.snapshot.At.Wall).Compare(a.latest(v.snapshot.At.Wall)) })
	var result []*nodev1.Signal
	for _, one := range signals {
		result = append(result, &nodev1.Signal{Source: one.source, SeenTime: api.Timestamp(one.seen), ExpireTime: api.Timestamp(one.expires)})
	}
	return result
}

// leaseSignals returns the signals of the Node's heartbeats. A heartbeat is a signal of the kubelet
// at the time when it was observed, and a signal of the agent at the time when it was received.
func (v *nodeView) leaseSignals(status *explain.NodeStatus) []signal {
	kubelet := signal{source: nodev1.SignalSource_SIGNAL_SOURCE_KUBELET}
	agent := signal{source: nodev1.SignalSource_SIGNAL_SOURCE_AGENT}
	if status.By == nodehealth.SessionBeat {
		kubelet.seen, kubelet.expires = status.Heard, status.Deadline
	}
	switch {
	case v.lease != nil:
		kubelet.seen, agent.seen = v.lease.ObserveTime, v.lease.AgentHeard()
		if kubelet.expires.IsZero() && v.lease.State != session.Expired {
			kubelet.expires = v.lease.Deadline
		}
		return []signal{kubelet, agent}
	case v.node.Session == session.Alive, v.node.Session == session.Suspect:
		return []signal{kubelet, agent}
	case status.By == nodehealth.SessionBeat:
		return []signal{kubelet} // a lease that expired, or ended without having expired
	}
	return nil
}

// expiryBy returns when the Node becomes silent, if the given signal decides that.
func expiryBy(status *explain.NodeStatus, by nodehealth.SignSource) time.Time {
	if status.By != by {
		return time.Time{}
	}
	return status.Deadline
}
