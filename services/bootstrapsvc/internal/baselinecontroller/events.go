package baselinecontroller

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	eventSource = "bootstrapsvc"
	// eventRepaired is the reason of an Event about an object of the baseline that was written.
	eventRepaired = "BaselineRepaired"
)

// Events sends one Event for each write of the baseline, about the object. It is safe for
// concurrent use, and its methods never block. Events that cannot be sent are lost.
type Events struct {
	kube     kubernetes.Interface
	recorder atomic.Pointer[record.EventRecorder] // nil outside of a term
}

// NewEvents returns Events that are sent by kube; a nil kube sends none.
func NewEvents(kube kubernetes.Interface) *Events { return &Events{kube: kube} }

// Start sends Events until ctx, which carries the term, ends or the caller calls stop, which it
// must do once.
func (e *Events) Start(ctx context.Context) (stop func()) {
	if e.kube == nil {
		return func() {}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: e.kube.CoreV1().Events("")})
	recorder := record.EventRecorder(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: eventSource}))
	e.recorder.Store(&recorder)
	return func() {
		e.recorder.Store(nil)
		broadcaster.Shutdown()
	}
}

// Applied records a write.
func (e *Events) Applied(change baseline.Change) {
	recorder := e.recorder.Load()
	if recorder == nil {
		return
	}
	apiVersion, kind := change.Kind().ToAPIVersionAndKind()
	(*recorder).Event(&corev1.ObjectReference{
		APIVersion: apiVersion, Kind: kind, Namespace: change.Object.GetNamespace(), Name: change.Object.GetName(), UID: change.Object.GetUID(),
	}, corev1.EventTypeNormal, eventRepaired, fmt.Sprintf("%s (%s): %s", change.Reason, change.Verb, change.Detail))
}
