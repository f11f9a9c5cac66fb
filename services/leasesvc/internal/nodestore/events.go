package nodestore

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// Sources and reasons of Events are those of kube-controller-manager, because users filter by them.
const (
	NodeHealthSource = "node-controller"
	EvictionSource   = "taint-eviction-controller"
	evictionReason   = "TaintManagerEviction"
)

// Events sends Events until Close is called or its context ends. Its methods never block and are
// safe for concurrent use.
type Events struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// NewEvents returns Events of a source.
func NewEvents(ctx context.Context, kube kubernetes.Interface, source string) *Events {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	return &Events{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: source}),
	}
}

// Close drops the Events that have not been sent.
func (e *Events) Close() { e.broadcaster.Shutdown() }

// NodeRegistered says that a Node was created.
func (e *Events) NodeRegistered(node *corev1.Node) {
	e.recorder.Eventf(nodeReference(node), corev1.EventTypeNormal, "RegisteredNode", "node %s is registered", node.Name)
}

// NodeRemoved says that a Node was deleted.
func (e *Events) NodeRemoved(node *corev1.Node) {
	e.recorder.Eventf(nodeReference(node), corev1.EventTypeNormal, "RemovingNode", "node %s is deleted", node.Name)
}

// NodeNotReady says that a ready Node was marked Unknown.
func (e *Events) NodeNotReady(node *corev1.Node) {
	e.recorder.Eventf(nodeReference(node), corev1.EventTypeNormal, "NodeNotReady", "node %s is not ready any more", node.Name)
}

// PodNotReady says that a Pod was marked NotReady.
func (e *Events) PodNotReady(pod *corev1.Pod) {
	e.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "the node is not ready")
}

// Evicted says that a Pod was deleted.
func (e *Events) Evicted(evicted *eviction.Eviction) {
	e.recorder.Eventf(podReference(evicted.Pod), corev1.EventTypeNormal, evictionReason, "deleted from node %s for its taint %s, tolerated for %v",
		evicted.Node, evicted.Taint.ToString(), evicted.Due.Sub(evicted.Since))
}

// EvictionCancelled says that a pending Pod need not leave.
func (e *Events) EvictionCancelled(pending eviction.PendingPod) {
	e.recorder.Eventf(podReference(pending.Pod), corev1.EventTypeNormal, evictionReason, "may stay on node %s: its taint %s is gone or tolerated",
		pending.Pod.Spec.NodeName, pending.Taint.ToString())
}

// DuplicateHolder says that two boots send heartbeats under the name of a Node.
func (e *Events) DuplicateHolder(node string, uid types.UID, current, other string) {
	e.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}, corev1.EventTypeWarning, "DuplicateHolder",
		"two machines send heartbeats as node %s: boot %s has the lease, boot %s is rejected; stop one of both, often one is a clone of the other",
		node, current, other)
}

func nodeReference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

func podReference(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}
