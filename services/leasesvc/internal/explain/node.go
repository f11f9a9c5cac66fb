package explain

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// What to do first when nothing is heard of a machine.
const (
	nextMachine = "See whether the machine is up and reaches the network; then whether its kubelet runs, and its agent if it has one."
	nextAgent   = "See whether its agent runs and reaches leasesvc: the kubelet lives."
	nextKubelet = "Look at the kubelet's log on the node, and at the other conditions of the Node."
)

func (f *Facts) lives() bool {
	return f.Health == Starting || f.Health == Ready || f.Health == NotReady
}

// lost tells that the time of the node is up.
func (f *Facts) lost() bool { return f.Health == Silent || f.Health == Unknown }

func sessionLink(f Facts) Link {
	l := Link{Code: CodeSession, Source: fromSession, Version: strconv.FormatInt(f.Epoch, 10)}
	s := f.Session
	switch {
	case s == nil && !f.Sessions:
		l.Verdict, l.Finding = Unseen, "The loop sessions does not run on this replica, so no session is known."
		l.Next = "If its nodes beat over gRPC, see why the loop does not run: --loops, and /loops of the replica."
		return l
	case s == nil:
		l.Verdict, l.Finding = Absent, "It has no session: its kubelet's Lease and status say whether it lives."
		return l
	}
	l.Version = strconv.FormatInt(s.Epoch, 10)
	switch {
	case s.State == nodehealth.SessionAlive:
		l.Verdict, l.Time = Good, s.Start
		l.Finding = fmt.Sprintf("Its session is alive, since %s under boot %q.", at(f.Now, s.Start), s.Boot)
	case s.State == nodehealth.SessionSuspect:
		l.Verdict, l.Time, l.Next = Doubtful, s.Beat, nextMachine
		l.Finding = fmt.Sprintf("Its session is suspect: beats are missing since %s, and it expires at %s.", at(f.Now, s.Beat), at(f.Now, s.Deadline))
	case f.lives():
		l.Verdict, l.Time, l.Next = Doubtful, s.Deadline, nextAgent
		l.Finding = fmt.Sprintf("Its session expired at %s, but the node gives signs of life in another way.", at(f.Now, s.Deadline))
	default:
		l.Verdict, l.Time, l.Next = Broken, s.Deadline, nextMachine
		l.Finding = fmt.Sprintf("Its session expired at %s: no beat since %s.", at(f.Now, s.Deadline), at(f.Now, s.Beat))
	}
	return l
}

func beatLink(f Facts) Link {
	l := Link{Code: CodeLastBeat, Source: sourceOf(f.By), Time: f.Heard, Version: f.versionOf(f.By)}
	silence := ago(f.Now.Sub(f.Heard))
	switch {
	case f.By == nodehealth.GraceStart && f.lost():
		l.Verdict, l.Next = Broken, nextMachine
		l.Finding = fmt.Sprintf("No sign of life since this replica began to listen for it, %s ago.", silence)
	case f.By == nodehealth.GraceStart:
		l.Verdict = Unseen
		l.Finding = fmt.Sprintf("This replica has listened for it for %s only, and heard nothing yet.", silence)
	case f.lost():
		l.Verdict, l.Next = Broken, nextMachine
		l.Finding = fmt.Sprintf("The last sign of life was a %s, %s ago.", sign(f.By), silence)
	case f.Health == Suspect:
		l.Verdict, l.Next = Doubtful, nextMachine
		l.Finding = fmt.Sprintf("The last sign of life was a %s, %s ago: later than usual.", sign(f.By), silence)
	default:
		l.Verdict = Good
		l.Finding = fmt.Sprintf("The last sign of life was a %s, %s ago.", sign(f.By), silence)
	}
	if f.Session != nil {
		l.Next = "" // the session's link has said it
	}
	return l
}

func sourceOf(by nodehealth.SignSource) string {
	switch by {
	case nodehealth.SessionBeat:
		return fromSession
	case nodehealth.LeaseRenewal:
		return fromLease
	case nodehealth.StatusUpdate:
		return fromNode
	}
	return fromHealth
}

func (f *Facts) versionOf(by nodehealth.SignSource) string {
	switch {
	case by == nodehealth.LeaseRenewal && f.Lease != nil:
		return f.Lease.Version
	case by == nodehealth.StatusUpdate:
		return f.Node.ResourceVersion
	}
	return strconv.FormatInt(f.Epoch, 10)
}

func deadlineLink(f Facts) Link {
	l := Link{Code: CodeDeadline, Source: fromHealth, Version: strconv.FormatInt(f.Epoch, 10), Time: f.Deadline}
	deadline := f.Deadline
	if deadline.IsZero() && f.Session != nil {
		deadline = f.Session.Deadline
	}
	switch {
	case f.Health == Silent && f.HeldBy != "":
		l.Verdict, l.Next = Broken, "Nothing is declared until that has passed; trivet_node_blind and trivet_node_held show for how long. If it stays, the log of this replica says why."
		l.Finding = fmt.Sprintf("Its time ended at %s, %s ago, but it is not declared: %s.", at(f.Now, deadline), ago(f.Now.Sub(deadline)), f.HeldBy)
	case f.Health == Silent:
		l.Verdict = Broken
		l.Finding = fmt.Sprintf("Its time ended at %s, %s ago: it is about to be declared.", at(f.Now, deadline), ago(f.Now.Sub(deadline)))
	case f.Health == Unknown:
		l.Verdict = Broken
		l.Finding = fmt.Sprintf("Its time ended at %s, so it was declared unknown.", at(f.Now, deadline))
	case f.Health == Suspect:
		l.Verdict = Doubtful
		l.Finding = fmt.Sprintf("If nothing is heard it is declared at %s, in %s.", at(f.Now, deadline), ago(deadline.Sub(f.Now)))
	case deadline.IsZero():
		l.Verdict, l.Finding = Good, "Its session has a deadline of its own."
	default:
		l.Verdict = Good
		l.Finding = fmt.Sprintf("It has %s left until the next sign of life.", ago(deadline.Sub(f.Now)))
	}
	return l
}

func leaseLink(f Facts) Link {
	l := Link{Code: CodeLease, Source: fromLease, Object: Object{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: f.Namespace, Name: f.Node.Name,
	}}
	if f.Lease == nil {
		return f.withoutLease(l)
	}
	l.Version, l.Time = f.Lease.Version, f.Lease.RenewTime
	renewed := "never renewed"
	if !f.Lease.RenewTime.IsZero() {
		renewed = fmt.Sprintf("renewed at %s by its writer's clock, for %s", at(f.Now, f.Lease.RenewTime), f.Lease.Duration)
	}
	switch {
	case f.Session != nil && f.Session.WriteError != "":
		l.Verdict, l.Next = Doubtful, "Other readers of Leases may take the node for dead; look at leasesvc's log and at kube-apiserver."
		l.Finding = fmt.Sprintf("Its Lease is %s; the last write from here failed: %s.", renewed, f.Session.WriteError)
	case f.Lease.Holder != f.Node.Name:
		l.Verdict, l.Next = Doubtful, "Find out who writes under that name; the kubelet and leasesvc leave such a Lease alone."
		l.Finding = fmt.Sprintf("Its Lease is held by %q, not by the node; it is %s.", f.Lease.Holder, renewed)
	case f.lost():
		l.Verdict = Broken
		l.Finding = fmt.Sprintf("Its Lease is not renewed any more: %s.", renewed)
	default:
		l.Verdict = Good
		l.Finding = fmt.Sprintf("Its Lease is %s.", renewed)
	}
	return l
}

func (f *Facts) withoutLease(l Link) Link {
	switch {
	case f.Session != nil && f.Session.State != nodehealth.SessionExpired:
		l.Verdict, l.Finding = Doubtful, "There is no Lease; the session's owner writes it soon."
		if f.Session.WriteError != "" {
			l.Finding = "There is no Lease, and writing it failed: " + f.Session.WriteError + "."
			l.Next = "Look at leasesvc's log and at kube-apiserver."
		}
	case f.lost():
		l.Verdict, l.Finding = Broken, "There is no Lease."
		l.Next = "A living kubelet makes one within seconds; its log says why it cannot, for example a missing permission."
	default:
		l.Verdict, l.Finding = Doubtful, "There is no Lease."
		l.Next = "A living kubelet makes one within seconds; if it stays away, its log says why."
	}
	return l
}

func readyLink(f Facts) Link {
	l := f.nodeLink(CodeReady)
	c := condition(f.Node, corev1.NodeReady)
	if c == nil {
		l.Verdict, l.Finding, l.Next = Doubtful, "It has no Ready condition: its kubelet has never reported.", nextKubelet
		if f.Health == Silent {
			l.Verdict = Broken
		}
		return l
	}
	l.Time = c.LastTransitionTime.Time
	since := at(f.Now, l.Time)
	switch {
	case c.Status == corev1.ConditionTrue && f.Health == Silent:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("Ready is still True, since %s.", since)
	case c.Status == corev1.ConditionTrue:
		l.Verdict, l.Finding = Good, fmt.Sprintf("Ready is True since %s.", since)
	case c.Status == corev1.ConditionFalse:
		l.Verdict, l.Next = Broken, nextKubelet
		l.Finding = fmt.Sprintf("Its kubelet says since %s that it is not ready: %s.", since, said(c))
	case f.lives():
		l.Verdict, l.Next = Broken, "A kubelet that lives reports within seconds; if it does not, look at its log."
		l.Finding = fmt.Sprintf("Ready is Unknown since %s; the node is heard again, but its kubelet has not reported.", since)
	default:
		l.Verdict = Broken
		l.Finding = fmt.Sprintf("Ready was set to Unknown at %s: %s.", since, said(c))
	}
	return l
}

func since(node *corev1.Node, key string, effect corev1.TaintEffect) time.Time {
	for _, t := range node.Spec.Taints {
		if t.Key == key && t.Effect == effect && t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
	}
	return time.Time{}
}
