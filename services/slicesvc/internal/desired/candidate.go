package desired

import (
	corev1 "k8s.io/api/core/v1"
)

// Candidate is a pod that the Service's selector matches, with what is known of
// the node it is bound to.
type Candidate struct {
	// Pod is only read.
	Pod *corev1.Pod
	// NodeKnown says whether the node in spec.nodeName exists.
	NodeKnown bool
	// Zone is the node's topology.kubernetes.io/zone label; empty when it has none or is not known.
	Zone string
}

// Exclusion is why a pod has no endpoint in a Service, or none of a family.
type Exclusion string

// The reasons for which a pod is left out, in the order in which they are looked for.
const (
	// Included: the pod has an endpoint.
	Included Exclusion = ""
	// Terminal: the pod is Failed or Succeeded and its address may belong to another pod by now.
	Terminal Exclusion = "TERMINAL"
	// NoAddress: the pod has no IP yet.
	NoAddress Exclusion = "NO_ADDRESS"
	// NodeMissing: the pod's node does not exist, and the Service does not publish addresses that are not ready.
	NodeMissing Exclusion = "NODE_MISSING"
	// NoAddressOfFamily: the pod has IPs, but no usable one of this family.
	NoAddressOfFamily Exclusion = "NO_ADDRESS_OF_FAMILY"
)

// Ready reports whether the pod's Ready condition is True.
func Ready(pod *corev1.Pod) bool {
	condition := ReadyCondition(pod)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// ReadyCondition returns the pod's Ready condition, nil if it has none. The
// result points into pod.
func ReadyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Finished reports whether the pod's containers have ended for good.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// exclude gives the reason for which the candidate has no endpoint in any
// family; a reason that holds for one family only is found from its addresses.
func exclude(service *corev1.Service, candidate Candidate) Exclusion {
	switch {
	case Finished(candidate.Pod):
		return Terminal
	case len(candidate.Pod.Status.PodIPs) == 0:
		return NoAddress
	case awaitsNode(candidate) && !service.Spec.PublishNotReadyAddresses:
		return NodeMissing
	default:
		return Included
	}
}

// awaitsNode reports whether the candidate's endpoint would change when its
// node became known. A pod that is not bound to a node has an empty node name,
// which no node has.
func awaitsNode(candidate Candidate) bool { return !candidate.NodeKnown }
