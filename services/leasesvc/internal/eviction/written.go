package eviction

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LastTaintWrite is when the list of a Node's taints was last written, by the clock of the kube-apiserver, or a later time: the
// writer may have written other fields since. It is zero when nobody owns the list.
func LastTaintWrite(node *corev1.Node) time.Time {
	var last time.Time
	for _, entry := range node.ManagedFields {
		if ownsTaints(entry) && entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

// TaintWriters returns what LastTaintWrite needs of the managed fields, which are large.
func TaintManagers(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var owners []metav1.ManagedFieldsEntry
	for _, entry := range fields {
		if ownsTaints(entry) {
			owners = append(owners, metav1.ManagedFieldsEntry{
				Manager: entry.Manager, Time: entry.Time, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`),
			})
		}
	}
	return owners
}

// ownsTaints looks for the list among the fields: no other field of a Node is called so.
func ownsTaints(entry metav1.ManagedFieldsEntry) bool {
	return entry.Subresource == "" && entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:taints"`))
}
