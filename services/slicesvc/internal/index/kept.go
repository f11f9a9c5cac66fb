package index

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// kept is a pod as it is remembered: what endpoints are made from and explained
// by, in a fifth of the memory that the API's type takes, most of it for fields
// nobody asks for. It is never changed.
type kept struct {
	namespace, name           string
	uid                       types.UID
	version                   string
	labels                    map[string]string
	node, hostname, subdomain string
	phase                     corev1.PodPhase
	addresses                 []corev1.PodIP
	containers, inits         []corev1.Container
	// ready is nil for a pod without a Ready condition, ending for one that nobody
	// has asked to go.
	ready  *readiness
	ending *ending
}

// readiness is a Ready condition.
type readiness struct {
	status corev1.ConditionStatus
	since  metav1.Time
}

// ending is when a pod will be gone, and how long it was given for it.
type ending struct {
	at    metav1.Time
	grace *int64
}

// keep remembers a pod.
func keep(object *corev1.Pod) *kept {
	pod := &kept{
		namespace:  object.Namespace,
		name:       object.Name,
		uid:        object.UID,
		version:    object.ResourceVersion,
		labels:     object.Labels,
		node:       object.Spec.NodeName,
		hostname:   object.Spec.Hostname,
		subdomain:  object.Spec.Subdomain,
		phase:      object.Status.Phase,
		addresses:  object.Status.PodIPs,
		containers: object.Spec.Containers,
		inits:      object.Spec.InitContainers,
	}
	if condition := desired.ReadyCondition(object); condition != nil {
		pod.ready = &readiness{status: condition.Status, since: condition.LastTransitionTime}
	}
	if object.DeletionTimestamp != nil {
		pod.ending = &ending{at: *object.DeletionTimestamp, grace: object.DeletionGracePeriodSeconds}
	}
	return pod
}

// object makes the API's type of a pod again, with what is remembered of it.
func (p *kept) object() *corev1.Pod {
	object := &corev1.Pod{}
	p.fill(object)
	return object
}

// fill makes object, which may have been another pod, what is remembered of this one.
func (p *kept) fill(object *corev1.Pod) {
	conditions := object.Status.Conditions[:0]
	*object = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       p.namespace,
			Name:            p.name,
			UID:             p.uid,
			ResourceVersion: p.version,
			Labels:          p.labels,
		},
		Spec: corev1.PodSpec{
			NodeName:       p.node,
			Hostname:       p.hostname,
			Subdomain:      p.subdomain,
			Containers:     p.containers,
			InitContainers: p.inits,
		},
		Status: corev1.PodStatus{Phase: p.phase, PodIPs: p.addresses},
	}
	if p.ready != nil {
		object.Status.Conditions = append(conditions, corev1.PodCondition{
			Type:               corev1.PodReady,
			Status:             p.ready.status,
			LastTransitionTime: p.ready.since,
		})
	}
	if p.ending != nil {
		object.DeletionTimestamp, object.DeletionGracePeriodSeconds = &p.ending.at, p.ending.grace
	}
}

func (p *kept) key() Key { return Key{Namespace: p.namespace, Name: p.name} }

// isReady is desired.Ready.
func (p *kept) isReady() bool { return p.ready != nil && p.ready.status == corev1.ConditionTrue }

// finished is desired.Finished.
func (p *kept) finished() bool { return p.phase == corev1.PodFailed || p.phase == corev1.PodSucceeded }
