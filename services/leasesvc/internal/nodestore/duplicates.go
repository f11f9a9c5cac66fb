package nodestore

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DuplicateHolder says that two boots send heartbeats under the name of a Node.
func (e *Events) DuplicateHolder(node string, uid types.UID, current, other string) {
	e.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}, corev1.EventTypeWarning, "DuplicateHolder",
		"two machines send heartbeats as node %s: boot %s has the lease, boot %s is rejected; stop one of both, often one is a clone of the other",
		node, current, other)
}
