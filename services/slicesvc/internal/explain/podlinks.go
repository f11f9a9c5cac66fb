package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

func serviceLink(f Facts) evidence.Link {
	l := f.serviceLink(CodeService)
	l.Time = f.Service.CreationTimestamp.Time
	switch {
	case index.UnmanagedReasonOf(f.Service) == index.ExternalName:
		l.Result, l.Message = evidence.Failed, "It is an ExternalName Service: it stands for a DNS name and has no endpoints."
	case index.UnmanagedReasonOf(f.Service) == index.NoSelector:
		l.Result, l.Message = evidence.Failed, "It has no selector: another controller or a user writes its EndpointSlices."
		l.Next = "Give it a selector, or check what writes its slices."
	case f.Service.DeletionTimestamp != nil:
		l.Result, l.Time = evidence.Warning, f.Service.DeletionTimestamp.Time
		l.Message = "It is being deleted: its slices are updated, but no slice is created."
	default:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It has a selector and is served over %s.", joinFamilies(desired.Families(f.Service)))
	}
	return l
}

// selectorLinks returns one link for each label of the selector, or one if it has none.
func selectorLinks(f Facts) []evidence.Link {
	keys := f.selectorKeys()
	if len(keys) == 0 {
		l := f.serviceLink(CodeSelector)
		l.Result, l.Message = evidence.NotApplicable, "There is no selector to match."
		return []evidence.Link{l}
	}
	links := make([]evidence.Link, 0, len(keys))
	for _, key := range keys {
		l := f.podLink(CodeSelector)
		wanted := f.Service.Spec.Selector[key]
		has, ok := f.Candidate.Pod.Labels[key]
		switch {
		case ok && has == wanted:
			l.Result, l.Message = evidence.OK, fmt.Sprintf("It has the label %s=%s.", key, wanted)
		case ok:
			l.Result, l.Message = evidence.Failed, fmt.Sprintf("Its label %s is %q; the Service selects %q.", key, has, wanted)
		default:
			l.Result, l.Message = evidence.Failed, fmt.Sprintf("It has no label %s; the Service selects %q.", key, wanted)
		}
		if l.Result == evidence.Failed {
			l.Next = "Change the selector, or the labels in the template of the pod."
		}
		links = append(links, l)
	}
	return links
}

func phaseLink(f Facts) evidence.Link {
	l := f.podLink(CodePhase)
	phase := f.Candidate.Pod.Status.Phase
	switch {
	case desired.Finished(f.Candidate.Pod):
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("It is %s: it has ended, and another pod may have its address.", phase)
	case phase == "":
		l.Result, l.Message = evidence.OK, "It has no phase yet."
	default:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It is %s.", phase)
	}
	return l
}

func addressLink(f Facts, of family, all []family) evidence.Link {
	l := f.podLink(CodeAddress)
	pod := f.Candidate.Pod
	addresses := desired.Addresses(pod, of.addressType)
	other := false
	for _, family := range all {
		other = other || family.served && desired.Addresses(pod, family.addressType) != ""
	}
	switch {
	case !of.served:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("The Service is no longer served over %s.", of.addressType)
	case addresses != "":
		l.Result, l.Message = evidence.OK, fmt.Sprintf("Its %s address is %s.", of.addressType, strings.ReplaceAll(addresses, ",", ", "))
	case len(pod.Status.PodIPs) == 0:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("It has no %s address yet: it gets one with its sandbox on the node.", of.addressType)
		l.Next = "Check the pod's events: it may wait for a node, an image or the network plugin."
	case specialAddress(pod, of.addressType) != "":
		l.Result = evidence.Failed
		l.Message = fmt.Sprintf("Its address %s is a loopback, link-local or unspecified one, which kube-apiserver refuses in slices.", specialAddress(pod, of.addressType))
		l.Next = "Check the kubelet and the network plugin of its node, which reported the address."
	case other:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("It has no %s address, only one of another family.", of.addressType)
	default:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("It has no usable %s address; the Service is served over %[1]s only.", of.addressType)
		l.Next = "Set spec.ipFamilies of the Service to the family of the pods."
	}
	return l
}

// specialAddress returns the first address of a family that is left out of slices; empty for none.
func specialAddress(pod *corev1.Pod, addressType discoveryv1.AddressType) string {
	for i := range pod.Status.PodIPs {
		if address, family, ok := desired.ParseAddress(pod.Status.PodIPs[i].IP); ok && family == addressType && desired.Special(address) {
			return address
		}
	}
	return ""
}

func nodeLink(f Facts) evidence.Link {
	name := f.Candidate.Pod.Spec.NodeName
	l := evidence.Link{Code: CodeNode, Source: "node", Object: evidence.Object{APIVersion: "v1", Kind: "Node", Name: name}}
	published := f.Service.Spec.PublishNotReadyAddresses
	switch {
	case name == "" && published:
		l.Result, l.Message, l.Object = evidence.Warning, "It is not bound to a node yet; the Service publishes it anyway.", evidence.Object{}
	case name == "":
		l.Result, l.Message, l.Object = evidence.Failed, "It is not bound to a node yet.", evidence.Object{}
		l.Next = "Check the pod's events: the scheduler reports there what it lacks."
	case !f.Candidate.NodeKnown && published:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("Its node %s does not exist; the Service publishes it anyway, without a zone.", name)
	case !f.Candidate.NodeKnown:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("Its node %s does not exist: an endpoint waits for its node.", name)
		l.Next = "Check why the Node object is missing; the endpoint is added with it."
	case f.Candidate.Zone == "":
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It is on %s, which has no zone.", name)
	default:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It is on %s in zone %s.", name, f.Candidate.Zone)
	}
	return l
}

func readinessLink(f Facts) evidence.Link {
	l := f.podLink(CodeReadiness)
	ready := desired.ReadyCondition(f.Candidate.Pod)
	since := ""
	if ready != nil && !ready.LastTransitionTime.IsZero() {
		l.Time = ready.LastTransitionTime.Time
		since = " since " + wording.Clock(f.Now, l.Time)
	}
	switch {
	case ready != nil && ready.Status == corev1.ConditionTrue:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It is ready%s.", since)
	case f.Service.Spec.PublishNotReadyAddresses:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It is not ready%s; the Service publishes pods that are not ready (publishNotReadyAddresses).", since)
	case ready == nil:
		l.Result, l.Message = evidence.Failed, "It has no readiness yet, so no client routes to it."
		l.Next = nextReadiness
	default:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("It is not ready%s, so no client routes to it.", since)
		l.Next = nextReadiness
	}
	return l
}

const nextReadiness = "Check its readiness probes and gates: kubectl describe pod."

func terminationLink(f Facts) evidence.Link {
	l := f.podLink(CodeTermination)
	pod := f.Candidate.Pod
	if pod.DeletionTimestamp == nil {
		l.Result, l.Message = evidence.OK, "It is not being deleted."
		return l
	}
	l.Time = pod.DeletionTimestamp.Time
	end := wording.Clock(f.Now, l.Time)
	switch {
	case f.Service.Spec.PublishNotReadyAddresses:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("It is being deleted, at the latest at %s; the Service publishes it until it is gone.", end)
	case desired.Ready(pod):
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("It is being deleted, at the latest at %s: it still serves, but clients use it only if no other pod is ready.", end)
	default:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("It is being deleted, at the latest at %s.", end)
	}
	return l
}

func portsLink(f Facts) evidence.Link {
	l := f.podLink(CodePorts)
	ports, missing := desired.Ports(f.Service, f.Candidate.Pod)
	switch {
	case len(f.Service.Spec.Ports) == 0:
		l.Result, l.Message = evidence.OK, "The Service has no ports: clients choose them."
	case len(missing) == 0:
		l.Result, l.Message = evidence.OK, fmt.Sprintf("It has the Service's ports as %s.", desired.PortText(ports))
	case len(ports) == 0:
		l.Result, l.Message = evidence.Failed, fmt.Sprintf("None of its containers has a port named %s, so its endpoint has no ports.", wording.Quoted(missing, len(missing), maxText))
		l.Next = "Name the container's port like the Service's targetPort, or use a number as targetPort."
	default:
		l.Result, l.Message = evidence.Warning, fmt.Sprintf("It has the Service's ports as %s; none of its containers has a port named %s.",
			desired.PortText(ports), wording.Quoted(missing, len(missing), maxText))
		l.Next = "Name the container's port like the Service's targetPort, or use a number as targetPort."
	}
	return l
}
