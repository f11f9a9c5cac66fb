package nodestore

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// eventSource is upstream's name for the author of these Events: people filter by it.
const eventSource = "node-controller"

// Events tells people in Events what happened, under upstream's reasons. Its methods never block and are safe for concurrent use.
type NodeEvents struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// NewEvents returns Events that are sent until ctx ends or Close is called.
func NewNodeEvents(ctx context.Context, kube kubernetes.Interface) *NodeEvents {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	return &NodeEvents{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: eventSource}),
	}
}

// Close ends the sending; what was not sent is lost.
func (e *NodeEvents) Close() { e.broadcaster.Shutdown() }

// NodeRegistered tells of a new Node.
func (e *NodeEvents) NodeRegistered(node *corev1.Node) {
	e.recorder.Eventf(reference(node), corev1.EventTypeNormal, "RegisteredNode", "node %s is watched over from now on", node.Name)
}

// NodeRemoved tells of a Node that is gone.
func (e *NodeEvents) NodeRemoved(node *corev1.Node) {
	e.recorder.Eventf(reference(node), corev1.EventTypeNormal, "RemovingNode", "node %s is gone and no longer watched over", node.Name)
}

// NodeNotReady tells of a Node that was ready and has been declared.
func (e *NodeEvents) NodeNotReady(node *corev1.Node) {
	e.recorder.Eventf(reference(node), corev1.EventTypeNormal, "NodeNotReady", "node %s is not ready any more", node.Name)
}

// PodNotReady tells of a pod that was marked.
func (e *NodeEvents) PodNotReady(pod *corev1.Pod) {
	e.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "the node is not ready")
}

func reference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}
