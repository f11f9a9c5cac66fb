package explain

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// First steps when a machine gives no sign of life.
const (
	nextMachine = "See whether the machine is up and reaches the network; then whether its kubelet runs, and its agent if it has one."
	nextAgent   = "See whether its agent runs and reaches leasesvc: the kubelet is alive."
	nextKubelet = "Look at the kubelet's log on the node, and at the other conditions of the Node."
	nextLease   = "A running kubelet creates one within seconds; if it does not, its log says why, for example a missing permission."
)

// alive returns whether the node gives signs of life in time.
func (f *Facts) alive() bool {
	return f.Health == Starting || f.Health == Ready || f.Health == NotReady
}

// silent returns whether the grace period of the node is over.
func (f *Facts) silent() bool { return f.Health == Silent || f.Health == Unknown }

// say sets the result of a link. next is optional.
func (l Link) say(verdict Verdict, finding string, next ...string) Link {
	l.Verdict, l.Finding = verdict, finding
	if len(next) > 0 {
		l.Next = next[0]
	}
	return l
}

func (l Link) at(time time.Time) Link {
	l.Time = time
	return l
}

func sessionLink(f Facts) Link {
	l := Link{Code: CodeSession, Source: fromSession, Version: version(f.Epoch)}
	s := f.Session
	switch {
	case s == nil && !f.Sessions:
		return l.say(Unseen, "The loop sessions does not run on this replica, so no session is known.",
			"If its nodes beat over gRPC, see why the loop does not run: --loops, and /loops of the replica.")
	case s == nil:
		return l.say(Absent, "It has no session: its kubelet's Lease and status say whether it is alive.")
	}
	l.Version = version(s.Epoch)
	beat, deadline := clock(f.Now, s.Beat), clock(f.Now, s.Deadline)
	switch {
	case s.State == session.Alive:
		return l.at(s.Start).say(Good, fmt.Sprintf("Its session is alive, since %s under boot %q.", clock(f.Now, s.Start), s.Boot))
	case s.State == session.Suspect:
		return l.at(s.Beat).say(Doubtful, fmt.Sprintf("Its session is suspect: beats are missing since %s, and it expires at %s.", beat, deadline), nextMachine)
	case f.alive():
		return l.at(s.Deadline).say(Doubtful, fmt.Sprintf("Its session expired at %s, but the node gives other signs of life.", deadline), nextAgent)
	}
	return l.at(s.Deadline).say(Broken, fmt.Sprintf("Its session expired at %s: no beat since %s.", deadline, beat), nextMachine)
}

func beatLink(f Facts) Link {
	l := Link{Code: CodeLastBeat, Source: sourceOf(f.By), Time: f.Heard, Version: f.versionOf(f.By)}
	silence := duration(f.Now.Sub(f.Heard))
	last := fmt.Sprintf("The last sign of life was a %s, %s ago", sign(f.By), silence)
	switch {
	case f.By == nodehealth.GraceStart && f.silent():
		l = l.say(Broken, fmt.Sprintf("No sign of life since this replica began to watch it, %s ago.", silence), nextMachine)
	case f.By == nodehealth.GraceStart:
		l = l.say(Unseen, fmt.Sprintf("This replica has watched it for %s only, and there was no sign of life yet.", silence))
	case f.silent():
		l = l.say(Broken, last+".", nextMachine)
	case f.Health == Suspect:
		l = l.say(Doubtful, last+": later than usual.", nextMachine)
	default:
		l = l.say(Good, last+".")
	}
	if f.Session != nil {
		l.Next = "" // the link of the session has it
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
	case by == nodehealth.LeaseRenewal && f.Lease.Version != "":
		return f.Lease.Version
	case by == nodehealth.StatusUpdate:
		return f.Node.ResourceVersion
	}
	return version(f.Epoch)
}

func version(epoch int64) string { return strconv.FormatInt(epoch, 10) }

func deadlineLink(f Facts) Link {
	l := Link{Code: CodeDeadline, Source: fromHealth, Version: version(f.Epoch), Time: f.Deadline}
	deadline := f.Deadline
	if deadline.IsZero() && f.Session != nil {
		deadline = f.Session.Deadline
	}
	at, past, left := clock(f.Now, deadline), duration(f.Now.Sub(deadline)), duration(deadline.Sub(f.Now))
	switch {
	case f.Health == Silent && f.HeldBy != "":
		return l.say(Broken, fmt.Sprintf("Its grace period ended at %s, %s ago, but it is not marked Unknown: %s.", at, past, f.HeldBy),
			"No node is marked before that has passed; trivet_node_blind and trivet_node_held show for how long. If it stays, the log of this replica says why.")
	case f.Health == Silent:
		return l.say(Broken, fmt.Sprintf("Its grace period ended at %s, %s ago: it is about to be marked Unknown.", at, past))
	case f.Health == Unknown:
		return l.say(Broken, fmt.Sprintf("Its grace period ended at %s, so it was marked Unknown.", at))
	case f.Health == Suspect:
		return l.say(Doubtful, fmt.Sprintf("Without a sign of life it is marked Unknown at %s, in %s.", at, left))
	case deadline.IsZero():
		return l.say(Good, "Its session has a deadline of its own.")
	}
	return l.say(Good, fmt.Sprintf("It has %s left until the next sign of life.", left))
}

func leaseLink(f Facts) Link {
	l := Link{Code: CodeLease, Source: fromLease, Object: Object{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: f.Namespace, Name: f.Node.Name,
	}}
	if f.Lease == (nodehealth.Lease{}) {
		return f.missingLease(l)
	}
	l.Version, l.Time = f.Lease.Version, f.Lease.RenewTime
	renewed := "never renewed"
	if !f.Lease.RenewTime.IsZero() {
		renewed = fmt.Sprintf("renewed at %s by its writer's clock, for %s", clock(f.Now, f.Lease.RenewTime), f.Lease.Duration)
	}
	switch {
	case f.Session != nil && f.Session.WriteError != "":
		return l.say(Doubtful, fmt.Sprintf("Its Lease is %s; the last write from here failed: %s.", renewed, f.Session.WriteError),
			"Other readers of Leases may take the node for dead; look at leasesvc's log and at kube-apiserver.")
	case f.Lease.Holder != f.Node.Name:
		return l.say(Doubtful, fmt.Sprintf("Its Lease is held by %q, not by the node; it is %s.", f.Lease.Holder, renewed),
			"Find the program that writes under that name; the kubelet and leasesvc leave such a Lease alone.")
	case f.silent():
		return l.say(Broken, fmt.Sprintf("Its Lease is not renewed any more: %s.", renewed))
	}
	return l.say(Good, fmt.Sprintf("Its Lease is %s.", renewed))
}

func (f *Facts) missingLease(l Link) Link {
	hasSession := f.Session != nil && f.Session.State != session.Expired
	switch {
	case hasSession && f.Session.WriteError != "":
		return l.say(Doubtful, "There is no Lease, and writing it failed: "+f.Session.WriteError+".", "Look at leasesvc's log and at kube-apiserver.")
	case hasSession:
		return l.say(Doubtful, "There is no Lease; the session's owner writes it soon.")
	case f.silent():
		return l.say(Broken, "There is no Lease.", nextLease)
	}
	return l.say(Doubtful, "There is no Lease.", nextLease)
}

func readyLink(f Facts) Link {
	l := f.nodeLink(CodeReady)
	c := nodehealth.ConditionOf(f.Node, corev1.NodeReady)
	if c == nil {
		verdict := Doubtful
		if f.Health == Silent {
			verdict = Broken
		}
		return l.say(verdict, "It has no Ready condition: its kubelet has never reported.", nextKubelet)
	}
	l.Time = c.LastTransitionTime.Time
	since := clock(f.Now, l.Time)
	switch {
	case c.Status == corev1.ConditionTrue && f.Health == Silent:
		return l.say(Doubtful, fmt.Sprintf("Ready is still True, since %s.", since))
	case c.Status == corev1.ConditionTrue:
		return l.say(Good, fmt.Sprintf("Ready is True since %s.", since))
	case c.Status == corev1.ConditionFalse:
		return l.say(Broken, fmt.Sprintf("Its kubelet says since %s that it is not ready: %s.", since, message(c)), nextKubelet)
	case f.alive():
		return l.say(Broken, fmt.Sprintf("Ready is Unknown since %s; the node gives signs of life again, but its kubelet has not reported.", since),
			"A running kubelet reports within seconds; if it does not, look at its log.")
	}
	return l.say(Broken, fmt.Sprintf("Ready was set to Unknown at %s: %s.", since, message(c)))
}

// nodeLink returns a link whose evidence is the Node object.
func (f *Facts) nodeLink(code string) Link {
	return Link{Code: code, Source: fromNode, Version: f.Node.ResourceVersion, Object: Object{
		APIVersion: "v1", Kind: "Node", Name: f.Node.Name, UID: string(f.Node.UID),
	}}
}
