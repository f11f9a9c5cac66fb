package eviction

import (
	"bytes"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// ClockTolerance is added to a time that another clock wrote. It covers the difference between
// clocks and the rounding to seconds.
const ClockTolerance = 10 * time.Second

const (
	// forever means that a taint is tolerated without an end.
	forever = time.Duration(math.MaxInt64)
	// maxToleration is longer than any Pod runs. Longer tolerations mean forever, because adding
	// them could overflow.
	maxToleration = 100 * 365 * 24 * time.Hour
)

// FromNodeHealth returns whether a taint is one that node health sets, in Trivet or in
// kube-controller-manager.
func FromNodeHealth(taint *corev1.Taint) bool {
	return taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable
}

// toleratedFor returns how long a Pod may stay in spite of a taint. As in upstream, the first
// toleration that matches counts.
func toleratedFor(tolerations []corev1.Toleration, taint *corev1.Taint) time.Duration {
	for i := range tolerations {
		t := &tolerations[i]
		switch {
		// Comparison operators are behind a feature gate. A Pod has one only if the gate is on in
		// kube-apiserver.
		case !t.ToleratesTaint(klog.Logger{}, taint, true):
			continue
		case t.TolerationSeconds == nil || *t.TolerationSeconds > int64(maxToleration/time.Second):
			return forever
		default:
			return time.Duration(max(*t.TolerationSeconds, 0)) * time.Second
		}
	}
	return 0
}

// addedAt returns when a taint was added, or a later time; zero if the Node does not tell.
func addedAt(node *corev1.Node, taint *corev1.Taint) time.Time {
	if taint.TimeAdded != nil {
		return taint.TimeAdded.Time
	}
	return LastTaintWrite(node)
}

// addedAgain returns whether a taint was removed and added again since before.
func addedAgain(before, taint *corev1.Taint) bool {
	return taint.TimeAdded != nil && before.TimeAdded != nil && before.TimeAdded.Before(taint.TimeAdded)
}

// LastTaintWrite returns when the taints of a Node were last written, by the clock of
// kube-apiserver. It may return a later time, because a manager may have written other fields
// since. It is zero if no manager owns the taints.
func LastTaintWrite(node *corev1.Node) time.Time {
	var last time.Time
	for _, entry := range node.ManagedFields {
		if ownsTaints(entry) && entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

// TaintManagers returns what LastTaintWrite needs of managed fields, which are large.
func TaintManagers(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var managers []metav1.ManagedFieldsEntry
	for _, entry := range fields {
		if ownsTaints(entry) {
			managers = append(managers, metav1.ManagedFieldsEntry{
				Manager: entry.Manager, Time: entry.Time, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`),
			})
		}
	}
	return managers
}

// ownsTaints returns whether an entry contains the taints. No other field of a Node has that name.
func ownsTaints(entry metav1.ManagedFieldsEntry) bool {
	return entry.Subresource == "" && entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:taints"`))
}
