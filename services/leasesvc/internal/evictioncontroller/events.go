package evictioncontroller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

const (
	// eventSource is upstream's name for the author of these Events: people filter by it.
	eventSource = "taint-eviction-controller"
	// eventReason is upstream's, for both.
	eventReason = "TaintManagerEviction"
)

// Recorder tells people in Events what happened, under upstream's reason. Its methods never block and are safe for concurrent use.
type Recorder struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// NewRecorder returns a Recorder whose Events are sent until ctx ends or Close is called.
func NewRecorder(ctx context.Context, kube kubernetes.Interface) *Recorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	return &Recorder{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: eventSource}),
	}
}

// Close ends the sending; what was not sent is lost.
func (r *Recorder) Close() { r.broadcaster.Shutdown() }

// Evicted tells of a pod that was deleted.
func (r *Recorder) Evicted(e *eviction.Eviction) {
	r.recorder.Eventf(reference(e.Pod), corev1.EventTypeNormal, eventReason, "deleted from node %s for its taint %s, tolerated for %v",
		e.Node, e.Taint.ToString(), e.Due.Sub(e.Since))
}

// Spared tells of a pod that was to be deleted and is not.
func (r *Recorder) EvictionCancelled(w eviction.PendingPod) {
	r.recorder.Eventf(reference(w.Pod), corev1.EventTypeNormal, eventReason, "may stay on node %s: its taint %s is gone or tolerated",
		w.Pod.Spec.NodeName, w.Taint.ToString())
}

func reference(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}
