package nodehealthcontroller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

func nodeObject(node *corev1.Node) decisions.Object {
	return decisions.Object{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: string(node.UID)}
}

// recordStep records a write of a Node that has ended. Of writes that fail in a row it records the
// first one.
func (r *run) recordStep(res *result, failedBefore bool) {
	step := res.step
	decision := decisions.Decision{
		Object: nodeObject(step.Node), ResourceVersion: step.Node.ResourceVersion, Message: step.Reason, InputAge: step.InputAge,
	}
	if len(res.terms) > 0 && res.terms[0] != nil {
		decision.Shard, decision.Epoch = int32(res.terms[0].ID()), res.terms[0].Epoch()
	}
	switch {
	case res.err != nil:
		if failedBefore || overtaken(res.err) || apierrors.IsNotFound(res.err) {
			return
		}
		decision.Action, decision.Message = decisions.WriteRefused, fmt.Sprintf("%s: %v; it is tried again", step.Kind, res.err)
	case res.node == nil:
		return // the Lease is newer than the cache had it
	case step.Kind == nodehealth.MarkUnknown:
		decision.Action = decisions.NodeMarkedUnknown
	case step.Kind == nodehealth.RemoveNoExecute:
		decision.Action = decisions.TaintRemoved
	case step.Taints == nil:
		return // only labels
	case step.Kind == nodehealth.AddNoExecute, len(*step.Taints) >= len(step.Node.Spec.Taints):
		decision.Action = decisions.TaintAdded
	default:
		decision.Action = decisions.TaintRemoved
	}
	r.Decisions.Record(decision)
}

// recordReadiness records that a Node of a held shard that was marked Unknown is ready again.
func (r *run) recordReadiness(s *nodehealth.NodeState, before corev1.ConditionStatus) {
	if before != corev1.ConditionUnknown || s.Ready() != corev1.ConditionTrue || !s.Ownership.Held {
		return
	}
	decision := decisions.Decision{
		Action: decisions.NodeBack, Object: nodeObject(s.Node), ResourceVersion: s.Node.ResourceVersion, Message: "it reports ready again",
	}
	if held := r.terms[s.Ownership.Shard]; held != nil {
		decision.Shard, decision.Epoch = int32(s.Ownership.Shard), held.Epoch()
	}
	r.Decisions.Record(decision)
}

// recordPod records the end of the mark of a Pod.
func (r *run) recordPod(res *result, failedBefore bool) {
	pod := res.pod
	decision := decisions.Decision{
		Action: decisions.PodMarkedNotReady, Node: pod.Spec.NodeName, ResourceVersion: pod.ResourceVersion, Message: "its Node is not ready",
		Object: decisions.Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
	}
	if len(res.terms) > 0 && res.terms[0] != nil {
		decision.Shard, decision.Epoch = int32(res.terms[0].ID()), res.terms[0].Epoch()
	}
	if res.err != nil {
		if failedBefore || overtaken(res.err) || apierrors.IsNotFound(res.err) {
			return
		}
		decision.Action, decision.Message = decisions.WriteRefused, fmt.Sprintf("mark as not ready: %v; it is tried again", res.err)
	}
	r.Decisions.Record(decision)
}
