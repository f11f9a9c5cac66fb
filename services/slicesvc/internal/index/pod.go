package index

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Pod is what is kept of a Pod: the fields that endpoints are made from and explained by, in a
// fifth of the memory of the API's type. A Pod never changes.
type Pod struct {
	namespace, name           string
	uid                       types.UID
	version                   string
	labels                    map[string]string
	node, hostname, subdomain string
	phase                     corev1.PodPhase
	addresses                 []corev1.PodIP
	containers, inits         []corev1.Container
	// ready is nil for a Pod without a Ready condition.
	ready *readiness
	// deletion is nil for a Pod that is not being deleted.
	deletion *deletion
}

// readiness is a Ready condition.
type readiness struct {
	status corev1.ConditionStatus
	since  metav1.Time
}

// deletion is a deletionTimestamp with its grace period.
type deletion struct {
	at    metav1.Time
	grace *int64
}

// NewPod keeps the fields of a Pod that endpoints are made from.
func NewPod(object *corev1.Pod) *Pod {
	pod := &Pod{
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
		pod.deletion = &deletion{at: *object.DeletionTimestamp, grace: object.DeletionGracePeriodSeconds}
	}
	return pod
}

// object returns a new Pod in the API's type, with the kept fields.
func (p *Pod) object() *corev1.Pod {
	object := &corev1.Pod{}
	p.fill(object)
	return object
}

// fill overwrites object, which may have been filled from another Pod, with the kept fields.
func (p *Pod) fill(object *corev1.Pod) {
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
	if p.deletion != nil {
		object.DeletionTimestamp, object.DeletionGracePeriodSeconds = &p.deletion.at, p.deletion.grace
	}
}

func (p *Pod) key() Key { return Key{Namespace: p.namespace, Name: p.name} }

// hasAddress reports whether the Pod has a canonical address.
func (p *Pod) hasAddress(address string) bool {
	for i := range p.addresses {
		if ip := p.addresses[i].IP; ip == address || desired.CanonicalAddress(ip) == address {
			return true
		}
	}
	return false
}

// isReady is desired.Ready for a kept Pod.
func (p *Pod) isReady() bool { return p.ready != nil && p.ready.status == corev1.ConditionTrue }

// finished is desired.Finished for a kept Pod.
func (p *Pod) finished() bool { return p.phase == corev1.PodFailed || p.phase == corev1.PodSucceeded }
