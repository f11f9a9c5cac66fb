package explain

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// First steps when a machine gives no signal of life.
const (
	nextMachine = "See whether the machine is up and reaches the network; then whether its kubelet runs, and its agent if it has one."
	nextAgent   = "See whether its agent runs and reaches leasesvc: the kubelet is alive."
	nextCutOff  = "See on the node whether the kubelet runs and reaches kube-apiserver: its log, its certificate, its rights, the network."
	nextKubelet = "Look at the kubelet's log on the node, and at the other conditions of the Node."
	nextLease   = "A running kubelet creates one within seconds; if it does not, its log says why, for example a missing permission."
)

// agentAlone is how much later than the kubelet the agent must have been heard to be alive without
// it.
const agentAlone = 5 * time.Second

// alive returns whether the node gives signals of life in time.
func (f *Facts) alive() bool {
	return f.Health == Starting || f.Health == Ready || f.Health == NotReady
}

// silent returns whether the grace period of the node is over.
func (f *Facts) silent() bool { return f.Health == Silent || f.Health == Unknown }

// due says that node-health does something soon, or would do it.
func (s *NodeStatus) due(participle string) string {
	if s.DryRun {
		return fmt.Sprintf("would be %s if node-health was not in dry run", participle)
	}
	return "is about to be " + participle
}

func leaseLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodeLease, Source: fromLease, Version: version(f.Epoch)}
	s := f.Lease
	switch {
	case s == nil && !f.Sessions:
		return l.Say(evidence.Unknown, "The loop sessions does not run on this replica, so no lease is known.",
			"If its nodes send heartbeats to leasesvc, see why the loop does not run: --loops, and /loops of the replica.")
	case s == nil:
		return l.Say(evidence.NotApplicable, "It has no lease of leasesvc: its kubelet's Lease object and status say whether it is alive.")
	}
	l.Version = version(s.Epoch)
	beat, deadline := wording.Clock(f.Now, s.Beat), wording.Clock(f.Now, s.ExpireTime)
	switch {
	case s.State != session.Alive && s.AgentHeard.Sub(s.Beat) > agentAlone && !f.alive():
		result := evidence.Failed
		if s.State == session.Suspect {
			result = evidence.Warning
		}
		return l.At(s.Beat).Say(result, fmt.Sprintf("Its agent was heard at %s, and has not observed its kubelet to be alive since %s.",
			wording.Clock(f.Now, s.AgentHeard), beat), nextKubelet)
	case f.CutOff:
		return l.At(s.Beat).Say(evidence.Warning, "KUBELET_CUT_OFF: its agent was heard at "+wording.Clock(f.Now, s.AgentHeard)+
			", but its kubelet has reached no kube-apiserver since "+wording.Clock(f.Now, f.Heard)+".", nextCutOff)
	case s.State == session.Alive && !s.CutOff.IsZero():
		return l.At(s.CutOff).Say(evidence.Warning, fmt.Sprintf("Its lease is alive, but its agent says that kube-apiserver has served no request of its kubelet since %s.%s",
			wording.Clock(f.Now, s.CutOff), agentText(f)), nextCutOff)
	case s.State == session.Alive:
		return l.At(s.Start).Say(evidence.OK, fmt.Sprintf("Its lease is alive, since %s under boot %q.%s", wording.Clock(f.Now, s.Start), s.Boot, agentText(f)))
	case s.State == session.Suspect:
		return l.At(s.Beat).Say(evidence.Warning, fmt.Sprintf("Its lease is suspect: heartbeats are missing since %s, and it expires at %s.", beat, deadline), nextMachine)
	case f.alive():
		return l.At(s.ExpireTime).Say(evidence.Warning, fmt.Sprintf("Its lease expired at %s, but the node gives other signals of life.", deadline), nextAgent)
	}
	return l.At(s.ExpireTime).Say(evidence.Failed, fmt.Sprintf("Its lease expired at %s: no heartbeat since %s.", deadline, beat), nextMachine)
}

// agentText says which agent beats, and when it last saw the kubelet; empty if the agent is not
// known.
func agentText(f Facts) string {
	switch s := f.Lease; {
	case s.Agent == "":
		return ""
	case !s.Observes:
		return fmt.Sprintf(" Its agent is %s.", s.Agent)
	default:
		return fmt.Sprintf(" Its agent is %s, and last saw the kubelet at %s.", s.Agent, wording.Clock(f.Now, s.Beat))
	}
}

func beatLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodeLastBeat, Source: sourceOf(f.By), Time: f.Heard, Version: f.versionOf(f.By)}
	silence := duration(f.Now.Sub(f.Heard))
	last := fmt.Sprintf("The last signal of life was a %s, %s ago", signal(f.By), silence)
	switch {
	case f.By == nodehealth.GraceStart && f.silent():
		l = l.Say(evidence.Failed, fmt.Sprintf("No signal of life since this replica began to watch it, %s ago.", silence), nextMachine)
	case f.By == nodehealth.GraceStart:
		l = l.Say(evidence.Unknown, fmt.Sprintf("This replica has watched it for %s only, and there was no signal of life yet.", silence))
	case f.CutOff:
		l = l.Say(evidence.Failed, fmt.Sprintf("Its heartbeats arrive, but the last sign that its kubelet reaches kube-apiserver was a %s, %s ago.", signal(f.By), silence))
	case f.silent():
		l = l.Say(evidence.Failed, last+".", nextMachine)
	case f.Health == Suspect:
		l = l.Say(evidence.Warning, last+": later than usual.", nextMachine)
	default:
		l = l.Say(evidence.OK, last+".")
	}
	if f.Lease != nil {
		l.Next = "" // the link LEASE has it
	}
	return l
}

func sourceOf(by nodehealth.SignSource) string {
	switch by {
	case nodehealth.SessionBeat, nodehealth.ServedRequest:
		return fromLease
	case nodehealth.LeaseRenewal:
		return fromLeaseObject
	case nodehealth.StatusUpdate:
		return fromNode
	}
	return fromHealth
}

func (f *Facts) versionOf(by nodehealth.SignSource) string {
	switch {
	case by == nodehealth.LeaseRenewal && f.LeaseObject.Version != "":
		return f.LeaseObject.Version
	case by == nodehealth.StatusUpdate:
		return f.Node.ResourceVersion
	}
	return version(f.Epoch)
}

func version(epoch int64) string { return strconv.FormatInt(epoch, 10) }

func expireTimeLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodeExpireTime, Source: fromHealth, Version: version(f.Epoch), Time: f.Deadline}
	deadline := f.Deadline
	if deadline.IsZero() && f.Lease != nil {
		deadline = f.Lease.ExpireTime
	}
	at, past, left := wording.Clock(f.Now, deadline), duration(f.Now.Sub(deadline)), duration(deadline.Sub(f.Now))
	switch {
	case f.Health == Silent && f.Delay.Active():
		return l.Say(evidence.Failed, fmt.Sprintf("Its grace period ended at %s, %s ago, but it is not marked Unknown: %s (%s%s).", at, past, f.Delay.Message, f.Delay.Reason, f.since(f.DelaySince)),
			"No node is marked before that has passed; the metrics trivet_node_marking_suspended and trivet_node_held show for how long. If it stays, the log of this replica says why.")
	case f.Health == Silent:
		return l.Say(evidence.Failed, fmt.Sprintf("Its grace period ended at %s, %s ago: it %s.", at, past, f.due("marked Unknown")))
	case f.Health == Unknown:
		return l.Say(evidence.Failed, fmt.Sprintf("Its grace period ended at %s, so it was marked Unknown.", at))
	case f.Health == Suspect && f.DryRun:
		return l.Say(evidence.Warning, fmt.Sprintf("Without a signal of life its grace period ends at %s, in %s; node-health is in dry run and does not mark it.", at, left))
	case f.Health == Suspect:
		return l.Say(evidence.Warning, fmt.Sprintf("Without a signal of life it is marked Unknown at %s, in %s%s.", at, left, f.delayed()))
	case deadline.IsZero():
		return l.Say(evidence.OK, "Its lease has an expire time of its own.")
	}
	return l.Say(evidence.OK, fmt.Sprintf("It has %s left until the next signal of life.", left))
}

// since says when the Delay began; empty if that is not known.
func (f *Facts) since(begin time.Time) string {
	if begin.IsZero() {
		return ""
	}
	return " since " + wording.Clock(f.Now, begin)
}

// delayed says why a Node is marked later than its last signal of life alone would have it; empty
// if it is not.
func (s *NodeStatus) delayed() string {
	if s.Delay.Reason == nodehealth.GracePeriod || !s.Delay.Active() {
		return ""
	}
	return fmt.Sprintf(": %s (%s)", s.Delay.Message, s.Delay.Reason)
}

func leaseObjectLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodeLeaseObject, Source: fromLeaseObject, Object: evidence.Object{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: f.Namespace, Name: f.Node.Name,
	}}
	if f.LeaseObject == (nodehealth.Lease{}) {
		return f.missingLease(l)
	}
	l.Version, l.Time = f.LeaseObject.Version, f.LeaseObject.RenewTime
	renewed := "never renewed"
	if !f.LeaseObject.RenewTime.IsZero() {
		renewed = fmt.Sprintf("renewed at %s by its writer's clock, for %s", wording.Clock(f.Now, f.LeaseObject.RenewTime), f.LeaseObject.Duration)
	}
	switch {
	case f.Lease != nil && f.Lease.WriteError != "":
		return l.Say(evidence.Warning, fmt.Sprintf("Its Lease object is %s; the last write from here failed: %s.", renewed, f.Lease.WriteError),
			"Other readers of Leases may take the node for dead; look at leasesvc's log and at kube-apiserver.")
	case f.LeaseObject.Holder != f.Node.Name:
		return l.Say(evidence.Warning, fmt.Sprintf("Its Lease object is held by %q, not by the node; it is %s.", f.LeaseObject.Holder, renewed),
			"Find the program that writes under that name; the kubelet and leasesvc leave such a Lease alone.")
	case f.silent() && f.By != nodehealth.ServedRequest: // leasesvc renews that of a node whose heartbeats arrive
		return l.Say(evidence.Failed, fmt.Sprintf("Its Lease object is not renewed any more: %s.", renewed))
	}
	return l.Say(evidence.OK, fmt.Sprintf("Its Lease object is %s.", renewed))
}

func (f *Facts) missingLease(l evidence.Link) evidence.Link {
	hasLease := f.Lease != nil && f.Lease.State != session.Expired
	switch {
	case hasLease && f.Lease.WriteError != "":
		return l.Say(evidence.Warning, "There is no Lease object, and writing it failed: "+f.Lease.WriteError+".", "Look at leasesvc's log and at kube-apiserver.")
	case hasLease:
		return l.Say(evidence.Warning, "There is no Lease object; leasesvc writes it soon.")
	case f.silent():
		return l.Say(evidence.Failed, "There is no Lease object.", nextLease)
	}
	return l.Say(evidence.Warning, "There is no Lease object.", nextLease)
}

func readyLink(f Facts) evidence.Link {
	l := f.nodeLink(CodeReady)
	c := nodehealth.ConditionOf(f.Node, corev1.NodeReady)
	if c == nil {
		result := evidence.Warning
		if f.Health == Silent {
			result = evidence.Failed
		}
		return l.Say(result, "It has no Ready condition: its kubelet has never reported.", nextKubelet)
	}
	l.Time = c.LastTransitionTime.Time
	since := wording.Clock(f.Now, l.Time)
	switch {
	case c.Status == corev1.ConditionTrue && f.Health == Silent:
		return l.Say(evidence.Warning, fmt.Sprintf("Ready is still True, since %s.", since))
	case c.Status == corev1.ConditionTrue:
		return l.Say(evidence.OK, fmt.Sprintf("Ready is True since %s.", since))
	case c.Status == corev1.ConditionFalse:
		return l.Say(evidence.Failed, fmt.Sprintf("Its kubelet says since %s that it is not ready: %s.", since, message(c)), nextKubelet)
	case f.alive():
		return l.Say(evidence.Failed, fmt.Sprintf("Ready is Unknown since %s; the node gives signals of life again, but its kubelet has not reported.", since),
			"A running kubelet reports within seconds; if it does not, look at its log.")
	}
	return l.Say(evidence.Failed, fmt.Sprintf("Ready was set to Unknown at %s: %s.", since, message(c)))
}

// nodeLink returns a link whose evidence is the Node object.
func (f *Facts) nodeLink(code string) evidence.Link {
	return evidence.Link{Code: code, Source: fromNode, Version: f.Node.ResourceVersion, Object: evidence.Object{
		APIVersion: "v1", Kind: "Node", Name: f.Node.Name, UID: string(f.Node.UID),
	}}
}
