package explain

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// messageLength bounds what is repeated of what others wrote.
const messageLength = 240

// at says when something was: by the hour if it was today, as seen from now.
func at(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05") + " UTC"
	}
	return t.Format("2006-01-02 15:04:05") + " UTC"
}

// ago says for how long.
func ago(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// said is what a condition says, shortened.
func said(c *corev1.NodeCondition) string {
	text := strings.TrimSuffix(strings.Join(strings.Fields(c.Message), " "), ".")
	if len(text) > messageLength {
		cut := messageLength
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	switch {
	case text == "":
		return c.Reason
	case c.Reason == "":
		return text
	}
	return c.Reason + ": " + text
}

// sign says what a sign of life was.
func sign(by nodehealth.SignSource) string {
	switch by {
	case nodehealth.SessionBeat:
		return "beat of its session"
	case nodehealth.LeaseRenewal:
		return "renewal of its Lease"
	case nodehealth.StatusUpdate:
		return "heartbeat in its status"
	}
	return "sign of life"
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Reason says in one sentence why a Node is believed to be as it is. It does not change with time alone.
func (s *NodeStatus) Reason() string {
	ready := condition(s.Node, corev1.NodeReady)
	switch s.Health {
	case Starting:
		if s.Deadline.IsZero() {
			return "It beats, but has not reported a Ready condition yet."
		}
		return "It has not reported a Ready condition yet, and has until " + stamp(s.Deadline) + " to do so."
	case Ready:
		return "It gives signs of life, and its kubelet says that it is ready."
	case NotReady:
		if ready == nil || ready.Status == corev1.ConditionUnknown {
			return "It gives signs of life, but its kubelet has not reported since the node was declared unknown."
		}
		return "It gives signs of life, but its kubelet says that it is not ready: " + said(ready) + "."
	case Suspect:
		if s.Deadline.IsZero() {
			return "Its session misses beats."
		}
		return s.since() + "; its time ends at " + stamp(s.Deadline) + "."
	case Silent:
		if s.HeldBy != "" {
			return s.since() + "; it is not declared yet: " + s.HeldBy + "."
		}
		return s.since() + "; it is about to be declared unknown."
	}
	if ready == nil {
		return s.since() + "; it was declared unknown."
	}
	return s.since() + "; it was declared unknown at " + stamp(ready.LastTransitionTime.Time) + "."
}

func (s *NodeStatus) since() string {
	switch {
	case s.By == nodehealth.SessionBeat && s.Heard.IsZero():
		return "Its session expired"
	case s.By == nodehealth.GraceStart || s.Heard.IsZero():
		return "It has not been heard since this replica began to listen for it"
	}
	return "The last " + sign(s.By) + " was at " + stamp(s.Heard)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02 15:04:05") + " UTC"
}
