package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

func serviceLink(f Facts) Link {
	l := f.serviceLink(CodeService)
	l.Time = f.Service.CreationTimestamp.Time
	switch {
	case index.Management(f.Service) == index.ExternalName:
		l.Verdict, l.Finding = Broken, "It is an ExternalName Service: it stands for a DNS name and has no endpoints."
	case index.Management(f.Service) == index.NoSelector:
		l.Verdict, l.Finding = Broken, "It has no selector: its EndpointSlices are written by hand or by another controller."
		l.Next = "Give it a selector, or look at what writes its slices."
	case f.Service.DeletionTimestamp != nil:
		l.Verdict, l.Time = Doubtful, f.Service.DeletionTimestamp.Time
		l.Finding = "It is being deleted: its slices are kept in line, but no new ones are made."
	default:
		l.Verdict, l.Finding = Good, fmt.Sprintf("It has a selector and is served over %s.", list(desired.Families(f.Service)))
	}
	return l
}

// selectorLinks has one link for each label, or one where there are none.
func selectorLinks(f Facts) []Link {
	keys := f.selectorKeys()
	if len(keys) == 0 {
		l := f.serviceLink(CodeSelector)
		l.Verdict, l.Finding = Absent, "There is no selector to match."
		return []Link{l}
	}
	links := make([]Link, 0, len(keys))
	for _, key := range keys {
		l := f.podLink(CodeSelector)
		wanted := f.Service.Spec.Selector[key]
		has, ok := f.Candidate.Pod.Labels[key]
		switch {
		case ok && has == wanted:
			l.Verdict, l.Finding = Good, fmt.Sprintf("It has the label %s=%s.", key, wanted)
		case ok:
			l.Verdict, l.Finding = Broken, fmt.Sprintf("Its label %s is %q; the Service selects %q.", key, has, wanted)
		default:
			l.Verdict, l.Finding = Broken, fmt.Sprintf("It has no label %s; the Service selects %q.", key, wanted)
		}
		if l.Verdict == Broken {
			l.Next = "Change the selector, or the labels in the template that the pod is made from."
		}
		links = append(links, l)
	}
	return links
}

func phaseLink(f Facts) Link {
	l := f.podLink(CodePhase)
	phase := f.Candidate.Pod.Status.Phase
	switch {
	case desired.Finished(f.Candidate.Pod):
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It is %s: it has ended, and its address may be another pod's by now.", phase)
	case phase == "":
		l.Verdict, l.Finding = Good, "Its phase is not told yet."
	default:
		l.Verdict, l.Finding = Good, fmt.Sprintf("It is %s.", phase)
	}
	return l
}

func addressLink(f Facts, of family, all []family) Link {
	l := f.podLink(CodeAddress)
	pod := f.Candidate.Pod
	addresses := desired.Addresses(pod, of.addressType)
	other := false
	for _, family := range all {
		other = other || family.served && desired.Addresses(pod, family.addressType) != ""
	}
	switch {
	case !of.served:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("The Service is not served over %s any more.", of.addressType)
	case addresses != "":
		l.Verdict, l.Finding = Good, fmt.Sprintf("Its %s address is %s.", of.addressType, strings.ReplaceAll(addresses, ",", ", "))
	case len(pod.Status.PodIPs) == 0:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It has no %s address yet: it gets one when its sandbox is made on its node.", of.addressType)
		l.Next = "See the pod's events: it may wait for a node, an image or the network plugin."
	case other:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("It has no %s address, only of another family.", of.addressType)
	default:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It has no usable %s address; the Service is served over %[1]s only.", of.addressType)
		l.Next = "Serve the Service over the family that pods have: spec.ipFamilies."
	}
	return l
}

func nodeLink(f Facts) Link {
	name := f.Candidate.Pod.Spec.NodeName
	l := Link{Code: CodeNode, Source: "node", Object: Object{APIVersion: "v1", Kind: "Node", Name: name}}
	published := f.Service.Spec.PublishNotReadyAddresses
	switch {
	case name == "" && published:
		l.Verdict, l.Finding, l.Object = Doubtful, "It is not bound to a node yet; the Service publishes it all the same.", Object{}
	case name == "":
		l.Verdict, l.Finding, l.Object = Broken, "It is not bound to a node yet.", Object{}
		l.Next = "See the pod's events: the scheduler says there what it lacks."
	case !f.Candidate.NodeKnown && published:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("Its node %s does not exist; the Service publishes it all the same, without a zone.", name)
	case !f.Candidate.NodeKnown:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("Its node %s does not exist: endpoints wait for their node.", name)
		l.Next = "See why the Node object is gone, or not there yet; the endpoint comes with it."
	case f.Candidate.Zone == "":
		l.Verdict, l.Finding = Good, fmt.Sprintf("It is on %s, which tells no zone.", name)
	default:
		l.Verdict, l.Finding = Good, fmt.Sprintf("It is on %s in zone %s.", name, f.Candidate.Zone)
	}
	return l
}

func readinessLink(f Facts) Link {
	l := f.podLink(CodeReadiness)
	ready := desired.ReadyCondition(f.Candidate.Pod)
	since := ""
	if ready != nil && !ready.LastTransitionTime.IsZero() {
		l.Time = ready.LastTransitionTime.Time
		since = " since " + at(f.Now, l.Time)
	}
	switch {
	case ready != nil && ready.Status == corev1.ConditionTrue:
		l.Verdict, l.Finding = Good, fmt.Sprintf("It is ready%s.", since)
	case f.Service.Spec.PublishNotReadyAddresses:
		l.Verdict, l.Finding = Good, fmt.Sprintf("It is not ready%s; the Service publishes pods that are not (publishNotReadyAddresses).", since)
	case ready == nil:
		l.Verdict, l.Finding = Broken, "It has not said yet whether it is ready, so nobody routes to it."
		l.Next = nextReadiness
	default:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It is not ready%s, so nobody routes to it.", since)
		l.Next = nextReadiness
	}
	return l
}

const nextReadiness = "Look at its readiness probes and gates: kubectl describe pod."

func terminationLink(f Facts) Link {
	l := f.podLink(CodeTermination)
	pod := f.Candidate.Pod
	if pod.DeletionTimestamp == nil {
		l.Verdict, l.Finding = Good, "It is not being deleted."
		return l
	}
	l.Time = pod.DeletionTimestamp.Time
	end := at(f.Now, l.Time)
	switch {
	case f.Service.Spec.PublishNotReadyAddresses:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("It is being deleted, with time until %s; the Service publishes it until it is gone.", end)
	case desired.Ready(pod):
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It is being deleted, with time until %s: it serves on, but is used only where no other pod is ready.", end)
	default:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It is being deleted, with time until %s.", end)
	}
	return l
}

func portsLink(f Facts) Link {
	l := f.podLink(CodePorts)
	ports, missing := desired.Ports(f.Service, f.Candidate.Pod)
	switch {
	case len(f.Service.Spec.Ports) == 0:
		l.Verdict, l.Finding = Good, "The Service names no ports: clients choose."
	case len(missing) == 0:
		l.Verdict, l.Finding = Good, fmt.Sprintf("The Service's ports are %s on it.", desired.PortText(ports))
	case len(ports) == 0:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("None of its containers has a port of the name %s, so it is listed without ports.", quoted(missing))
		l.Next = "Name the container's port as the Service's targetPort, or use its number there."
	default:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("The Service's ports are %s on it; none of its containers has a port of the name %s.",
			desired.PortText(ports), quoted(missing))
		l.Next = "Name the container's port as the Service's targetPort, or use its number there."
	}
	return l
}
