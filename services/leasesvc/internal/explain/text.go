package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Reason returns the code of why a Node has its Health. docs/reasons.md lists them.
func (s *NodeStatus) Reason() string {
	if s.CutOff {
		return "KUBELET_CUT_OFF"
	}
	switch s.Health {
	case Starting:
		return "STARTUP_GRACE"
	case Ready:
		return "SIGNALS_RECEIVED"
	case NotReady:
		return "KUBELET_NOT_READY"
	case Suspect:
		return "SIGNALS_MISSING"
	case Silent, Unknown:
	}
	switch {
	case s.By == nodehealth.SessionBeat && s.Session == session.Expired:
		return "LEASE_EXPIRED"
	case s.By == nodehealth.GraceStart:
		return "NEVER_SEEN"
	}
	return "SIGNALS_EXPIRED"
}

// Message returns why a Node has its Health, in one sentence. It changes only with the status, not
// with time alone.
func (s *NodeStatus) Message() string {
	ready := nodehealth.ConditionOf(s.Node, corev1.NodeReady)
	if s.CutOff {
		return "Its agent lives, and its kubelet has reached no kube-apiserver since " + stamp(s.Heard) + "."
	}
	switch s.Health {
	case Starting:
		if s.Deadline.IsZero() {
			return "It sends heartbeats, but has not reported a Ready condition yet."
		}
		return "It has not reported a Ready condition yet, and has until " + stamp(s.Deadline) + " to do so."
	case Ready:
		return "It gives signals of life, and its kubelet says that it is ready."
	case NotReady:
		if ready == nil || ready.Status == corev1.ConditionUnknown {
			return "It gives signals of life, but its kubelet has not reported since the node was marked Unknown."
		}
		return "It gives signals of life, but its kubelet says that it is not ready: " + message(ready) + "."
	case Suspect:
		if s.Deadline.IsZero() {
			return "Heartbeats are missing, and its lease has not expired."
		}
		return s.lastSignal() + "; its grace period ends at " + stamp(s.Deadline) + "."
	case Silent:
		if s.Delay.Active() {
			return s.lastSignal() + "; it is not marked Unknown yet: " + s.Delay.Message + "."
		}
		return s.lastSignal() + "; it " + s.due("marked Unknown") + "."
	case Unknown:
	}
	if ready == nil {
		return s.lastSignal() + "; it was marked Unknown."
	}
	return s.lastSignal() + "; it was marked Unknown at " + stamp(ready.LastTransitionTime.Time) + "."
}

func (s *NodeStatus) lastSignal() string {
	switch {
	case s.By == nodehealth.SessionBeat && s.Heard.IsZero():
		return "Its lease expired"
	case s.By == nodehealth.GraceStart || s.Heard.IsZero():
		return "It has given no signal of life since this replica began to watch it"
	}
	return "The last " + signal(s.By) + " was at " + stamp(s.Heard)
}

func signal(by nodehealth.SignSource) string {
	switch by {
	case nodehealth.SessionBeat:
		return "heartbeat to leasesvc"
	case nodehealth.LeaseRenewal:
		return "renewal of its Lease object"
	case nodehealth.StatusUpdate:
		return "heartbeat in its status"
	case nodehealth.ServedRequest:
		return "served request"
	}
	return "signal of life"
}

// maxMessage bounds what is repeated of the message of a condition.
const maxMessage = 240

// message returns reason and message of a condition in one shortened line.
func message(c *corev1.NodeCondition) string {
	text := strings.TrimSuffix(wording.Line(c.Message, maxMessage), ".")
	switch {
	case text == "":
		return c.Reason
	case c.Reason == "":
		return text
	}
	return c.Reason + ": " + text
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return wording.Time(t)
}

func duration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
